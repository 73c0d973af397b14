/** Touch input: swipe the clips left for A, right for B; tap them to pause. @module */

const ENOUGH_PX = 70;
const TAP_PX = 10;
const TAP_MS = 400;

/**
 * @param {HTMLElement} area receives the gestures; vertical movement still scrolls the page
 * @param {{onDrag: (side: "left" | "right" | null) => void, onSwipe: (side: "left" | "right") => void, onTap: () => void}} handlers
 */
export function swipes(area, { onDrag, onSwipe, onTap }) {
  /** @type {{id: number, x: number, y: number, time: number} | null} */
  let start = null;
  /** @param {PointerEvent} event */
  const way = (event) => {
    if (!start || event.pointerId !== start.id) return null;
    const [x, y] = [event.clientX - start.x, event.clientY - start.y];
    if (Math.abs(x) < ENOUGH_PX || Math.abs(x) < 1.5 * Math.abs(y)) return null;
    return x < 0 ? "left" : "right";
  };
  area.addEventListener("pointerdown", (event) => {
    // A second finger means zooming.
    if (!event.isPrimary) start = null;
    else if (event.button === 0) start = { id: event.pointerId, x: event.clientX, y: event.clientY, time: event.timeStamp };
  });
  area.addEventListener("pointermove", (event) => event.pointerType !== "mouse" && onDrag(way(event)));
  area.addEventListener("pointercancel", () => {
    start = null;
    onDrag(null);
  });
  area.addEventListener("pointerup", (event) => {
    const side = event.pointerType === "mouse" ? null : way(event);
    const still = start && Math.hypot(event.clientX - start.x, event.clientY - start.y) < TAP_PX && event.timeStamp - start.time < TAP_MS;
    start = null;
    onDrag(null);
    if (side) onSwipe(side);
    else if (still) onTap();
  });
}
