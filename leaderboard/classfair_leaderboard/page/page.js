
"use strict";
(() => {
  const all = (root, what) => Array.from(root.querySelectorAll(what));
  const collator = new Intl.Collator("en", { numeric: true });

  // -- sorting: by the exact number behind a cell if there is one, else by its text; blanks last.
  const key = (row, place) => {
    const cell = row.cells[place];
    const value = cell.dataset.value;
    return value ? Number(value) : cell.textContent.trim();
  };
  const compare = (a, b, up) => {
    if (a === "" || b === "") return (a === "") - (b === "");
    const both = typeof a === "number" && typeof b === "number";
    return (both ? a - b : collator.compare(String(a), String(b))) * (up ? 1 : -1);
  };
  const sort = (table, place, up) => {
    const body = table.tBodies[0];
    const rows = Array.from(body.rows, (row) => [key(row, place), row]);
    rows.sort((one, other) => compare(one[0], other[0], up));
    body.append(...rows.map((pair) => pair[1]));
    Array.from(table.tHead.rows[0].cells, (cell, at) => {
      if (at === place) cell.setAttribute("aria-sort", up ? "ascending" : "descending");
      else cell.removeAttribute("aria-sort");
    });
  };
  document.addEventListener("click", (event) => {
    const head = event.target.closest("thead th");
    if (!head || !event.target.closest("button")) return;
    const before = head.getAttribute("aria-sort");
    const numbers = !head.classList.contains("text");
    sort(head.closest("table"), head.cellIndex, before ? before === "descending" : !numbers);
  });

  // -- each recipe: choice of ranking, filter, view by class
  const data = JSON.parse(document.getElementById("classes").textContent);
  const cell = (row, text, value, tag = "td") => {
    const made = document.createElement(tag);
    made.textContent = text;
    made.dataset.value = value;
    row.append(made);
    return made;
  };
  const fixed = (value) => (value === null ? "" : value.toFixed(1));

  const filter = (section) => {
    const wanted = section.querySelector(".filter").value.trim().toLowerCase();
    let shown = 0, total = 0;
    for (const grid of all(section, "[data-ranking]")) {
      for (const row of all(grid, "tbody tr")) {
        row.hidden = !row.cells[0].textContent.toLowerCase().includes(wanted);
        if (grid.hidden) continue;
        total += 1;
        shown += !row.hidden;
      }
    }
    section.querySelector(".count").textContent = wanted ? `${shown} of ${total} rows` : "";
  };

  const bar = (difference, largest) => {
    const place = document.createElement("div");
    const part = document.createElement("i");
    const width = (50 * Math.abs(difference)) / largest;
    place.className = "bar";
    part.className = difference < 0 ? "less" : "";
    part.style.width = `${width}%`;
    part.style.left = `${difference < 0 ? 50 - width : 50}%`;
    place.append(part);
    return place;
  };

  const classes = (section, told) => {
    const table = section.querySelector(".classes");
    const [method, baseline] = [".method", ".baseline"].map(
      (name) => told.rows[section.querySelector(name).value]);
    const heads = table.tHead.rows[0].cells;
    heads[3].firstChild.textContent = baseline.name;
    heads[4].firstChild.textContent = method.name;
    const differences = told.names.map((_, k) => {
      const [mine, theirs] = [method.accuracy[k], baseline.accuracy[k]];
      return mine === null || theirs === null ? null : mine - theirs;
    });
    const largest = Math.max(1, ...differences.map((value) => Math.abs(value ?? 0)));
    const rows = told.names.map((name, k) => {
      const row = document.createElement("tr");
      const first = cell(row, name, "", "th");
      first.scope = "row";
      first.className = "text";
      cell(row, told.rank[k], told.rank[k]);
      cell(row, told.count[k], told.count[k]);
      cell(row, fixed(baseline.accuracy[k]), baseline.accuracy[k] ?? "");
      cell(row, fixed(method.accuracy[k]), method.accuracy[k] ?? "");
      const more = differences[k];
      cell(row, more === null ? "" : `${more > 0 ? "+" : ""}${more.toFixed(1)}`, more ?? "");
      const last = cell(row, "", "");
      last.setAttribute("aria-hidden", "true");
      if (more !== null) last.append(bar(more, largest));
      return row;
    });
    const sorted = Array.from(heads).findIndex((head) => head.hasAttribute("aria-sort"));
    const up = sorted < 0 ? false : heads[sorted].getAttribute("aria-sort") === "ascending";
    table.tBodies[0].replaceChildren(...rows);
    sort(table, sorted < 0 ? 1 : sorted, up);
  };

  const options = (select, rows, chosen) => {
    select.replaceChildren(...rows.map((row, at) => {
      const option = document.createElement("option");
      option.value = String(at);
      option.textContent = row.name;
      option.selected = at === chosen;
      return option;
    }));
  };

  for (const section of all(document, ".recipe")) {
    section.querySelector(".ranking").addEventListener("change", (event) => {
      for (const grid of all(section, "[data-ranking]")) {
        grid.hidden = grid.dataset.ranking !== event.target.value;
      }
      filter(section);
    });
    section.querySelector(".filter").addEventListener("input", () => filter(section));
    const told = data[section.id];
    if (!told || !told.rows.length) continue;
    const erm = Math.max(0, told.rows.findIndex((row) => row.erm));
    const mr2 = told.rows.findIndex((row) => row.name.startsWith("MR2"));
    options(section.querySelector(".method"), told.rows, mr2 < 0 ? told.rows.length - 1 : mr2);
    options(section.querySelector(".baseline"), told.rows, erm);
    for (const name of [".method", ".baseline"]) {
      section.querySelector(name).addEventListener("change", () => classes(section, told));
    }
    classes(section, told);
  }

  // -- light and dark: the system's choice until the button says otherwise
  const theme = document.getElementById("theme");
  const dark = () => {
    const set = document.documentElement.dataset.theme;
    return set ? set === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  };
  const show = () => theme.setAttribute("aria-pressed", String(dark()));
  theme.hidden = false;
  theme.addEventListener("click", () => {
    document.documentElement.dataset.theme = dark() ? "light" : "dark";
    show();
  });
  show();
})();
