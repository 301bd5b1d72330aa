// Lines that say which text of this page does not fit: where the page scrolls sideways, where text is cut off, and
// where it sticks out of its box. What may be scrolled inside its own box fits.
function overflowing() {
  const SLACK = 1.5; // pixels: browsers round
  const lines = [];
  const root = document.scrollingElement;
  if (root.scrollWidth > root.clientWidth + SLACK) {
    lines.push(`the page scrolls sideways: ${root.scrollWidth}px in ${root.clientWidth}px`);
  }
  const named = (element) => {
    const id = element.id ? `#${element.id}` : "";
    const classes = [...element.classList].map((each) => `.${each}`).join("");
    return `${element.tagName.toLowerCase()}${id}${classes}`;
  };
  const shown = (element) => element.checkVisibility({ opacityProperty: true, visibilityProperty: true });
  // Text for screen readers alone is clipped to a pixel or two on purpose.
  const onlyHeard = (element) => {
    for (let each = element; each; each = each.parentElement) {
      if (each.offsetWidth <= 2 && each.offsetHeight <= 2 && getComputedStyle(each).overflowX !== "visible") return true;
    }
    return false;
  };
  const scrolls = (element) => {
    for (let each = element; each && each !== root && each !== document.body; each = each.parentElement) {
      if (["auto", "scroll"].includes(getComputedStyle(each).overflowX)) return true;
    }
    return false;
  };
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const text = texts.currentNode.textContent.trim();
    const element = texts.currentNode.parentElement;
    if (!text || ["SCRIPT", "STYLE", "OPTION"].includes(element.tagName) || !shown(element) || onlyHeard(element)) continue;
    const range = document.createRange();
    range.selectNodeContents(texts.currentNode);
    const drawn = range.getBoundingClientRect();
    // What is put wholly beyond the corner where a page begins comes out when it has the focus.
    if (drawn.right <= 0 || drawn.bottom + root.scrollTop <= 0) continue;
    const told = `${named(element)}: "${text.slice(0, 60)}"`;
    if (!scrolls(element) && (drawn.right > root.clientWidth + SLACK || drawn.left < -SLACK)) {
      lines.push(`sticks out of the screen: ${told}`);
      continue;
    }
    let box = element;
    while (box !== document.body && getComputedStyle(box).display === "inline") box = box.parentElement;
    const style = getComputedStyle(box);
    const around = box.getBoundingClientRect();
    const cut = ["hidden", "clip"].includes(style.overflowX) || ["hidden", "clip"].includes(style.overflowY);
    const wide = drawn.right > around.right + SLACK || drawn.left < around.left - SLACK;
    const high = drawn.bottom > around.bottom + SLACK || drawn.top < around.top - SLACK;
    // An ellipsis is fine where the whole text is told some other way.
    const ellipsis = style.textOverflow === "ellipsis" && (box.title || element.title);
    if (cut && (wide || high) && !ellipsis) lines.push(`is cut off: ${told}`);
    else if (wide && !cut && !scrolls(element)) lines.push(`sticks out of its box: ${told}`);
  }
  return [...new Set(lines)];
}
