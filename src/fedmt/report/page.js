"use strict";
(() => {
  const root = document.documentElement;
  const button = document.getElementById("theme");
  const dark = () =>
    root.classList.contains("dark") ||
    (!root.classList.contains("light") && matchMedia("(prefers-color-scheme: dark)").matches);
  const name = () => { button.textContent = dark() ? "light" : "dark"; };
  button.hidden = false;
  button.addEventListener("click", () => {
    const next = dark() ? "light" : "dark";
    root.classList.remove("light", "dark");
    root.classList.add(next);
    name();
  });
  name();

  // The browser's own hint comes late and not at all under a finger.
  const tip = document.getElementById("tip");
  const told = new WeakMap();
  for (const title of document.querySelectorAll("svg title")) {
    told.set(title.parentNode, title.textContent);
    title.parentNode.setAttribute("aria-label", title.textContent);
    title.remove();
  }
  for (const cell of document.querySelectorAll("td[title]")) {
    told.set(cell, cell.title);
    cell.removeAttribute("title");
  }
  document.addEventListener("pointerover", (event) => {
    let at = event.target;
    while (at instanceof Element && !told.has(at)) at = at.parentNode;
    tip.hidden = !(at instanceof Element);
    if (tip.hidden) return;
    tip.textContent = told.get(at);
    const box = at.getBoundingClientRect();
    const left = Math.min(Math.max(8, box.left + box.width / 2 - tip.offsetWidth / 2), innerWidth - tip.offsetWidth - 8);
    const above = box.top - tip.offsetHeight - 8;
    tip.style.left = `${left}px`;
    tip.style.top = `${above < 4 ? box.bottom + 8 : above}px`;
  });
  addEventListener("scroll", () => { tip.hidden = true; }, { passive: true });
})();
