// A table that is wider than its frame scrolls there. Only an element with a tab stop scrolls by keyboard.
const reachTables = () => {
  for (const frame of document.querySelectorAll(".md-typeset__scrollwrap")) {
    const scrolls = frame.scrollWidth > frame.clientWidth;
    if (scrolls) {
      frame.tabIndex = 0;
      frame.setAttribute("role", "region");
      frame.setAttribute("aria-label", "Table");
    } else {
      for (const name of ["tabindex", "role", "aria-label"]) frame.removeAttribute(name);
    }
  }
};
addEventListener("load", reachTables);
addEventListener("resize", reachTables);
