// Chooses light or dark before the first paint; a stored choice wins over the system's.
"use strict";
(() => {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const stored = () => {
    try {
      return localStorage.getItem("evercount-theme");
    } catch {
      return null; // storage is forbidden: follow the system
    }
  };
  const apply = () => {
    document.documentElement.dataset.theme = stored() ?? (dark.matches ? "dark" : "light");
    document.dispatchEvent(new Event("themechange"));
  };
  dark.addEventListener("change", apply);
  window.toggleTheme = () => {
    const next = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    try {
      if (next === (dark.matches ? "dark" : "light")) localStorage.removeItem("evercount-theme");
      else localStorage.setItem("evercount-theme", next);
      apply();
    } catch {
      document.documentElement.dataset.theme = next;
      document.dispatchEvent(new Event("themechange"));
    }
  };
  apply();
})();
