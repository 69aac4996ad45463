"use strict";
// Sorts and filters tables, keeps both in the address, and switches the theme.
// window.rtbPage: get(key), set({key: value or ""}, replace), onChange(function) over the keys of the address behind '#'.
(() => {
  const listeners = [];
  const read = () => new URLSearchParams(location.hash.includes("=") ? location.hash.slice(1) : "");
  const page = {
    get: key => read().get(key) || "",
    set(changes, replace = false) {
      const params = read();
      for (const [key, value] of Object.entries(changes)) {
        if (value) params.set(key, value); else params.delete(key);
      }
      const text = params.toString();
      const address = text ? "#" + text : location.pathname + location.search;
      if (replace) history.replaceState(null, "", address); else history.pushState(null, "", address);
      page.changed();
    },
    onChange(listener) { listeners.push(listener); },
    changed() { for (const listener of listeners) listener(); },
  };
  window.rtbPage = page;
  window.addEventListener("hashchange", page.changed);
  window.addEventListener("popstate", page.changed);

  function value(row, column, kind) {
    const cell = row.cells[column];
    const text = cell.dataset.v !== undefined ? cell.dataset.v : cell.textContent.trim();
    if (kind !== "number") return text;
    const number = parseFloat(text);
    return Number.isNaN(number) ? null : number;
  }
  const order = new Intl.Collator("en", { numeric: true });

  function setUp(box) {
    const id = box.id;
    const table = box.querySelector("table");
    const body = table.tBodies[0];
    const rows = Array.from(body.rows);
    const controls = box.querySelector(".controls");
    const filters = Array.from(box.querySelectorAll("[data-filter]"));
    const search = box.querySelector("[data-search]");
    const count = box.querySelector("[data-count]");
    const heads = Array.from(table.tHead.rows[0].cells);
    let sorted = "";
    let texts = null;

    heads.forEach((head, column) => {
      if (!head.dataset.kind) return;
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = head.textContent;
      if (head.title) button.title = head.title;
      head.replaceChildren(button);
      button.addEventListener("click", () => {
        const first = head.dataset.kind === "number" ? "d" : "a";
        const second = first === "d" ? "a" : "d";
        const now = page.get(id + ".sort");
        const next = now === column + first ? column + second : now === column + second ? "" : column + first;
        page.set({ [id + ".sort"]: next });
      });
    });

    function sort(wanted) {
      if (wanted === sorted) return;
      const match = /^(\d+)([ad])$/.exec(wanted);
      const column = match && Number(match[1]) < heads.length ? Number(match[1]) : -1;
      heads.forEach(head => head.removeAttribute("aria-sort"));
      let ordered = rows;
      if (column >= 0) {
        const kind = heads[column].dataset.kind;
        const sign = match[2] === "d" ? -1 : 1;
        heads[column].setAttribute("aria-sort", sign < 0 ? "descending" : "ascending");
        const keyed = rows.map(row => [value(row, column, kind), row]);
        keyed.sort(([a], [b]) => {
          if (a === null || b === null) return (a === null) - (b === null); // what is missing stands last, both ways
          return sign * (kind === "number" ? a - b : order.compare(a, b));
        });
        ordered = keyed.map(([, row]) => row);
      }
      body.append(...ordered);
      sorted = wanted;
    }

    function filter() {
      const wanted = filters.map(select => [select.dataset.filter, page.get(id + "." + select.dataset.filter)]);
      const words = page.get(id + ".q").toLowerCase().split(/\s+/).filter(Boolean);
      if (words.length && !texts) texts = rows.map(row => row.textContent.toLowerCase());
      let shown = 0;
      rows.forEach((row, place) => {
        const keep = wanted.every(([key, chosen]) => !chosen || row.getAttribute("data-" + key) === chosen) &&
          words.every(word => texts[place].includes(word));
        row.hidden = !keep;
        shown += keep;
      });
      if (count) count.textContent = shown === rows.length ? `${shown} rows` : `${shown} of ${rows.length} rows`;
    }

    function show() {
      for (const select of filters) select.value = page.get(id + "." + select.dataset.filter);
      if (search && document.activeElement !== search) search.value = page.get(id + ".q");
      sort(page.get(id + ".sort"));
      filter();
    }

    for (const select of filters) {
      select.addEventListener("change", () => page.set({ [id + "." + select.dataset.filter]: select.value }));
    }
    if (search) search.addEventListener("input", () => page.set({ [id + ".q"]: search.value }, true));
    if (controls) {
      controls.hidden = false;
      controls.querySelector("[data-reset]").addEventListener("click", () => {
        if (search) search.value = "";
        const changes = { [id + ".q"]: "", [id + ".sort"]: "" };
        for (const select of filters) changes[id + "." + select.dataset.filter] = "";
        page.set(changes);
      });
    }
    page.onChange(show);
    show();
  }
  for (const box of document.querySelectorAll("[data-table]")) setUp(box);

  const themes = ["system", "light", "dark"];
  const button = document.getElementById("theme");
  const keep = name => { try { localStorage.setItem("rtb-theme", name); } catch { /* not kept, that is all */ } };
  const kept = () => { try { return localStorage.getItem("rtb-theme"); } catch { return null; } };
  function theme(name) {
    if (name === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = name;
    button.textContent = "Theme: " + name;
  }
  let current = themes.includes(kept()) ? kept() : "system";
  theme(current);
  button.hidden = false;
  button.addEventListener("click", () => {
    current = themes[(themes.indexOf(current) + 1) % themes.length];
    theme(current);
    keep(current);
  });
})();
