// The copy button of a console block copies the commands: no prompts, no output.
addEventListener(
  "click",
  (event) => {
    const button = event.target.closest?.(".language-console [data-clipboard-target]");
    const code = button && document.querySelector(button.dataset.clipboardTarget)?.cloneNode(true);
    if (!code) return;
    for (const part of code.querySelectorAll(".gp, .go")) part.remove();
    button.dataset.clipboardText = code.textContent.replace(/\n+/g, "\n").trim();
  },
  { capture: true },
);
