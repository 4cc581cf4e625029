// Render the formulas that the build has marked, with the copy of KaTeX beside this file.
document.querySelectorAll(".arithmatex").forEach((element) => {
  const displayMode = element.tagName === "DIV";
  const source = element.textContent.trim().slice(2, -2);
  katex.render(source, element, { displayMode, throwOnError: false });
});
