// A flow's graph: zoom by buttons and Ctrl + wheel, pan by dragging, fit to the window. Without a script it scrolls.
(() => {
  "use strict";
  const known = new WeakSet();
  let zoom = 1;
  const setUp = () => {
    const canvas = document.querySelector(".canvas");
    const svg = canvas?.querySelector("svg.dag");
    if (!svg) return;
    const size = () => svg.getAttribute("viewBox").split(" ").slice(2).map(Number);
    const set = (wanted) => {
      const [width, height] = size();
      const was = zoom;
      zoom = Math.min(2, Math.max(0.25, wanted));
      const x = (canvas.scrollLeft + canvas.clientWidth / 2) / was;
      svg.setAttribute("width", String(Math.round(width * zoom)));
      svg.setAttribute("height", String(Math.round(height * zoom)));
      canvas.scrollLeft = x * zoom - canvas.clientWidth / 2;
      const now = document.getElementById("zoom-now");
      if (now) now.textContent = Math.round(zoom * 100) + " %";
    };
    if (known.has(canvas)) { if (zoom !== 1) set(zoom); return; }
    known.add(canvas);
    const [width] = size();
    const fit = () => set(Math.min(1, (canvas.clientWidth - 30) / size()[0]));
    document.querySelectorAll("[data-zoom]").forEach((button) => button.addEventListener("click", () => {
      if (button.dataset.zoom === "fit") fit();
      else set(zoom * (button.dataset.zoom === "in" ? 1.25 : 0.8));
    }));
    canvas.addEventListener("wheel", (event) => {
      if (!event.ctrlKey) return;
      event.preventDefault();
      set(zoom * (event.deltaY < 0 ? 1.1 : 0.9));
    }, { passive: false });
    let from = null;
    let moved = false;
    canvas.addEventListener("pointerdown", (event) => {
      if (event.pointerType !== "mouse" || event.button !== 0) return;
      from = { x: event.clientX, y: event.clientY, left: canvas.scrollLeft, top: canvas.scrollTop };
      moved = false;
    });
    canvas.addEventListener("pointermove", (event) => {
      if (!from) return;
      const dx = event.clientX - from.x;
      const dy = event.clientY - from.y;
      if (Math.abs(dx) + Math.abs(dy) > 5) { moved = true; canvas.classList.add("is-dragged"); }
      if (moved) { canvas.scrollLeft = from.left - dx; canvas.scrollTop = from.top - dy; }
    });
    addEventListener("pointerup", () => { from = null; canvas.classList.remove("is-dragged"); });
    canvas.addEventListener("click", (event) => { if (moved) event.preventDefault(); moved = false; }, true);
    canvas.addEventListener("dragstart", (event) => event.preventDefault());
    if (width > canvas.clientWidth - 28 && (canvas.clientWidth - 30) / width >= 0.7) fit();
  };
  setUp();
  document.addEventListener("winch-patched", setUp);
})();
