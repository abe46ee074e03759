// Repeats a call while its view is shown and the tab can be seen.

const EVERY_MS = 5000;

/** Call `work` now, and again every few seconds until `signal` aborts. Errors after the first call are `failed`'s. */
export async function poll(work, failed, signal, everyMs = EVERY_MS) {
  await work();
  const again = async () => {
    if (signal.aborted) return;
    if (document.visibilityState === "visible") {
      try {
        await work();
      } catch (error) {
        if (signal.aborted || error.name === "AbortError") return;
        failed(error);
      }
    }
    setTimeout(again, everyMs);
  };
  setTimeout(again, everyMs);
}
