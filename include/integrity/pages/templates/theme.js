// Airflow marks its theme by a class of the page around this frame; without a frame the system's theme remains.
(() => {
  const own = document.documentElement;
  let outer = null;
  try { outer = window.parent === window ? null : window.parent.document.documentElement; } catch { outer = null; }
  if (outer === null) return;
  const follow = () => {
    if (outer.classList.contains("dark")) own.dataset.theme = "dark";
    else if (outer.classList.contains("light")) own.dataset.theme = "light";
    else delete own.dataset.theme;
  };
  follow();
  new MutationObserver(follow).observe(outer, { attributes: true, attributeFilter: ["class"] });
})();
