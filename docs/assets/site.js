// Render the formulas that the build has marked, with the copy of KaTeX beside this file.
document.querySelectorAll(".arithmatex").forEach((element) => {
  const displayMode = element.tagName === "DIV";
  const source = element.textContent.trim().slice(2, -2);
  katex.render(source, element, { displayMode, throwOnError: false });
});

// Let wide tables be scrolled with the keyboard, and mark them for the style sheet.
document.querySelectorAll(".md-typeset__table").forEach((table) => {
  const frame = table.parentElement;
  const wide = frame.scrollWidth > frame.clientWidth;
  frame.classList.toggle("wide", wide);
  if (wide) frame.tabIndex = 0;
});
