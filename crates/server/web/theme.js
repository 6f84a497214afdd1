// Applies the chosen theme before the first paint; without a choice the browser's preference holds.
"use strict";
{
  let theme = null;
  try {
    theme = localStorage.getItem("theme");
  } catch {
    // Storage may be blocked; the page then follows the browser.
  }
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
}
