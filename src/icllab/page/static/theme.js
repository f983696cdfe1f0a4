// The colours that were chosen, before anything is drawn in others.
const chosen = localStorage.getItem("icl-lab theme");
if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
