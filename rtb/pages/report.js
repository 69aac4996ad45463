"use strict";
// Opens the drill-down of the task that the address names (#task=ID). Drill-downs are gzipped JSON, {id: HTML}, some
// tasks a block; a block is unpacked when one of its tasks is opened for the first time.
(() => {
  const page = window.rtbPage;
  const dialog = document.getElementById("task");
  const title = document.getElementById("task-title");
  const body = document.getElementById("task-body");
  const index = JSON.parse(document.getElementById("task-index").textContent);
  const blocks = new Map();
  let opened = "";

  function unpack(number) {
    if (!blocks.has(number)) blocks.set(number, (async () => {
      const packed = atob(document.getElementById("block-" + number).textContent.trim());
      const bytes = Uint8Array.from(packed, char => char.charCodeAt(0));
      const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
      return JSON.parse(await new Response(stream).text());
    })());
    return blocks.get(number);
  }

  async function open(id) {
    const number = index[id];
    opened = id;
    title.textContent = id;
    body.replaceChildren();
    for (const row of document.querySelectorAll("tr.current")) row.classList.remove("current");
    if (!dialog.open) dialog.showModal();
    dialog.scrollTop = 0;
    if (number === undefined) {
      body.textContent = "This run has no task of that name.";
      return;
    }
    document.getElementById("t-" + id).classList.add("current");
    body.textContent = "Unpacking…";
    try {
      const parts = await unpack(number);
      if (opened === id) body.innerHTML = parts[id]; // made and escaped by rtb; the page's policy runs nothing in it
    } catch (error) {
      body.textContent = "This browser cannot unpack the details (" + error + "); they are in the run's folder, under " + id + ".";
    }
    body.dataset.task = opened;
  }

  function step(by) {
    const rows = Array.from(document.querySelectorAll("#tasks tbody tr")).filter(row => !row.hidden);
    const place = rows.findIndex(row => row.id === "t-" + opened);
    const next = rows[place + by];
    if (next) page.set({ task: next.id.slice(2) }, true);
  }

  function show() {
    const id = page.get("task");
    if (id && id !== opened) open(id);
    else if (!id && dialog.open) dialog.close();
  }

  dialog.addEventListener("close", () => {
    const link = document.querySelector(`[id="t-${CSS.escape(opened)}"] a`);
    opened = "";
    body.replaceChildren();
    delete body.dataset.task;
    if (page.get("task")) page.set({ task: "" });
    if (link) link.focus();
  });
  dialog.querySelector("[data-close]").addEventListener("click", () => dialog.close());
  for (const button of dialog.querySelectorAll("[data-step]")) {
    button.addEventListener("click", () => step(Number(button.dataset.step)));
  }
  dialog.addEventListener("click", event => { if (event.target === dialog) dialog.close(); });
  document.addEventListener("keydown", event => {
    if (!dialog.open || event.altKey || event.ctrlKey || event.metaKey) return;
    if (event.key === "j") step(1);
    if (event.key === "k") step(-1);
  });
  document.addEventListener("click", event => {
    // A task's link keeps the filters that the address holds already.
    const link = event.target.closest ? event.target.closest('a[href^="#task="]') : null;
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    page.set({ task: new URLSearchParams(link.getAttribute("href").slice(1)).get("task") });
  });
  page.onChange(show);
  show();
})();
