"use strict";
(() => {
  const root = document.documentElement;
  const find = (selector, from = document) => from.querySelector(selector);
  const all = (selector, from = document) => Array.from(from.querySelectorAll(selector));

  // Elements are made from text alone: nothing that came with the data is ever parsed as HTML.
  const make = (name, css = "", ...content) => {
    const element = document.createElement(name);
    if (css) element.className = css;
    element.append(...content);
    return element;
  };

  /* Theme */
  const stored = {
    get: () => { try { return localStorage.getItem("reconcile-theme"); } catch { return null; } },
    set: (value) => { try { localStorage.setItem("reconcile-theme", value); } catch { /* file:// may forbid it */ } },
  };
  if (["light", "dark"].includes(stored.get())) root.dataset.theme = stored.get();
  find("#theme").addEventListener("click", () => {
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    stored.set(root.dataset.theme);
  });

  /* Copying */
  const selectText = (element) => {
    const range = document.createRange();
    range.selectNodeContents(element);
    getSelection().removeAllRanges();
    getSelection().addRange(range);
  };
  const copyText = async (element) => {
    try {
      await navigator.clipboard.writeText(element.textContent);
      return true;
    } catch {
      selectText(element);
      return document.execCommand("copy");
    }
  };
  for (const button of all("[data-copy]")) {
    button.addEventListener("click", async () => {
      const done = await copyText(document.getElementById(button.dataset.copy));
      button.textContent = done ? "Copied" : "Press Ctrl-C";
      find("#copied").textContent = done ? "The command is on the clipboard." : "The command is selected: press Ctrl-C.";
      setTimeout(() => { button.textContent = "Copy"; }, 2000);
    });
  }

  /* Printing shows what is folded */
  addEventListener("beforeprint", () => { for (const folded of all("details")) folded.open = true; });

  const indexElement = find("#items-index");
  if (!indexElement) return;

  /* Items: an index for the list, chunks of rows that are parsed when one of their items is opened */
  const index = JSON.parse(indexElement.textContent);
  const total = index.question.length;
  const chunkElements = all(".items-chunk");
  const parsed = new Map();
  const rowOf = (place) => {
    const number = Math.floor(place / index.chunk);
    if (!parsed.has(number)) parsed.set(number, JSON.parse(chunkElements[number].textContent));
    return parsed.get(number)[place % index.chunk];
  };
  const letter = (choice) => (choice >= 0 && choice < 26 ? String.fromCharCode(65 + choice) : choice >= 0 ? `#${choice + 1}` : "none");

  /* Filters */
  const form = find("#filters");
  const option = (value, text) => { const made = make("option", "", text); made.value = value; return made; };
  const tally = (masks, bit) => masks.reduce((sum, mask) => sum + ((mask >> bit) & 1), 0);
  index.factors.forEach(([, label], bit) => form.component.append(option(`moves:${bit}`, `${label}: moves the score (${tally(index.moves, bit)})`)));
  index.switches.forEach(([, label], bit) => form.component.append(option(`changes:${bit}`, `${label}: changes the pick (${tally(index.changes, bit)})`)));
  if (index.unexplained.length) form.component.append(option("unexplained", `unexplained (${index.unexplained.length})`));
  index.outcomes.forEach(([, label], number) => {
    const count = index.outcome.reduce((sum, found) => sum + (found === number), 0);
    if (count) form.outcome.append(option(String(number), `${label} (${count})`));
  });
  index.sides.forEach((side, bit) => {
    const count = tally(index.ties, bit);
    if (count) form.ties.append(option(String(bit), `${side.name}: best choices tie (${count})`));
  });
  if (form.ties.options.length < 2) form.ties.parentElement.hidden = true;
  index.subjects.forEach((label, number) => form.subject.append(option(String(number), label || "(no name)")));
  if (index.subjects.length < 2) form.subject.parentElement.hidden = true;

  let lowered = null;
  const unexplained = new Set(index.unexplained);
  const matching = () => {
    const [kind, bit] = form.component.value.split(":");
    const outcome = form.outcome.value === "" ? null : Number(form.outcome.value);
    const subject = form.subject.value === "" ? null : Number(form.subject.value);
    const ties = form.ties.value === "" ? null : Number(form.ties.value);
    const words = form.search.value.toLowerCase().split(/\s+/).filter(Boolean);
    if (words.length && !lowered) lowered = index.question.map((text, place) => `${text} ${index.subjects[index.subject[place]]}`.toLowerCase());
    const found = [];
    for (let place = 0; place < total; place += 1) {
      if (kind === "unexplained" ? !unexplained.has(place) : kind && !((index[kind][place] >> Number(bit)) & 1)) continue;
      if (outcome !== null && index.outcome[place] !== outcome) continue;
      if (ties !== null && !((index.ties[place] >> ties) & 1)) continue;
      if (subject !== null && index.subject[place] !== subject) continue;
      if (words.length && !words.every((word) => lowered[place].includes(word))) continue;
      found.push(place);
    }
    return found;
  };

  /* The list: only the rows in sight exist */
  const list = find("#list");
  const space = find(".space", list);
  let shown = [];
  let active = 0;
  const rowHeight = () => (matchMedia("(max-width: 40rem)").matches ? 64 : 44);
  const drawRow = (number, height) => {
    const place = shown[number];
    const [name, label] = index.outcomes[index.outcome[place]];
    const row = make("div", "row" + (number === active ? " active" : ""));
    row.id = `row-${number}`;
    row.setAttribute("role", "option");
    row.setAttribute("aria-selected", String(number === active));
    row.setAttribute("aria-posinset", String(number + 1));
    row.setAttribute("aria-setsize", String(shown.length));
    row.style.top = `${number * height}px`;
    const swatch = make("span", `swatch bg-o-${name.replaceAll("_", "-")}`);
    swatch.setAttribute("aria-hidden", "true");
    const subject = index.subjects[index.subject[place]];
    const question = index.question[place];
    row.append(
      make("span", "no", String(place + 1)),
      swatch,
      make("span", "what", question.length > 300 ? question.slice(0, 300) : question || "(no question text)"),
      make("span", "who", subject ? `${label} · ${subject}` : label),
    );
    row.addEventListener("click", () => { active = number; draw(); open(place); });
    return row;
  };
  const draw = () => {
    const height = rowHeight();
    const first = Math.max(0, Math.floor(list.scrollTop / height) - 5);
    const last = Math.min(shown.length, Math.ceil((list.scrollTop + list.clientHeight) / height) + 5);
    space.style.height = `${shown.length * height}px`;
    const rows = [];
    for (let number = first; number < last; number += 1) rows.push(drawRow(number, height));
    space.replaceChildren(...rows);
    if (shown.length && active >= first && active < last) list.setAttribute("aria-activedescendant", `row-${active}`);
    else list.removeAttribute("aria-activedescendant");
  };
  const refresh = () => {
    shown = matching();
    active = 0;
    list.scrollTop = 0;
    list.style.height = `${Math.max(1, Math.min(shown.length * rowHeight() + 2, 480))}px`;
    find("#shown").textContent = `${shown.length} of ${total} items`;
    draw();
  };
  const reveal = () => {
    const height = rowHeight();
    if (active * height < list.scrollTop) list.scrollTop = active * height;
    else if ((active + 1) * height > list.scrollTop + list.clientHeight) list.scrollTop = (active + 1) * height - list.clientHeight;
    draw();
  };
  list.addEventListener("scroll", draw, { passive: true });
  addEventListener("resize", draw);
  form.addEventListener("input", refresh);
  form.addEventListener("submit", (event) => event.preventDefault());
  list.addEventListener("keydown", (event) => {
    const page = Math.max(1, Math.floor(list.clientHeight / rowHeight()) - 1);
    const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -total, End: total };
    if (event.key in steps) {
      active = Math.max(0, Math.min(shown.length - 1, active + steps[event.key]));
      event.preventDefault();
      reveal();
    } else if ((event.key === "Enter" || event.key === " ") && shown.length) {
      event.preventDefault();
      open(shown[active]);
    }
  });

  /* Texts from shapes */
  const textOf = (shape, place, choices) => index.shapes[shape].map((piece) =>
    piece >= 0 ? index.literals[piece] : piece === -1 ? index.question[place] : choices[-2 - piece]).join("");

  /* Word by word: the longest common subsequence, ends that agree set aside */
  const WORDS = /\n|[^\S\n]+|[\p{L}\p{N}_]+|[^\p{L}\p{N}_\s]/gu;
  const compare = (left, right) => {
    let ours = left.match(WORDS) || [];
    let theirs = right.match(WORDS) || [];
    if (ours.length * theirs.length > 9e6) {
      ours = left.split(/(?<=\n)/);
      theirs = right.split(/(?<=\n)/);
    }
    if (ours.length * theirs.length > 9e6) return [[[left, true]], [[right, true]]];
    let head = 0;
    while (head < ours.length && head < theirs.length && ours[head] === theirs[head]) head += 1;
    let tail = 0;
    while (tail < Math.min(ours.length, theirs.length) - head && ours[ours.length - 1 - tail] === theirs[theirs.length - 1 - tail]) tail += 1;
    const a = ours.slice(head, ours.length - tail);
    const b = theirs.slice(head, theirs.length - tail);
    const width = b.length + 1;
    const longest = new Uint16Array((a.length + 1) * width);
    for (let i = a.length - 1; i >= 0; i -= 1) {
      for (let j = b.length - 1; j >= 0; j -= 1) {
        longest[i * width + j] = a[i] === b[j] ? longest[(i + 1) * width + j + 1] + 1 : Math.max(longest[(i + 1) * width + j], longest[i * width + j + 1]);
      }
    }
    const sides = [[], []];
    const put = (side, text, changed) => {
      const last = side[side.length - 1];
      if (last && last[1] === changed) last[0] += text;
      else side.push([text, changed]);
    };
    const both = (text) => { put(sides[0], text, false); put(sides[1], text, false); };
    ours.slice(0, head).forEach(both);
    let i = 0;
    let j = 0;
    while (i < a.length || j < b.length) {
      if (i < a.length && j < b.length && a[i] === b[j]) { both(a[i]); i += 1; j += 1; }
      else if (j >= b.length || (i < a.length && longest[(i + 1) * width + j] >= longest[i * width + j + 1])) { put(sides[0], a[i], true); i += 1; }
      else { put(sides[1], b[j], true); j += 1; }
    }
    ours.slice(ours.length - tail).forEach(both);
    return sides;
  };
  const marked = (segments, css) => segments.map(([text, changed]) => (changed ? make("mark", css, text) : text));

  /* Numbers of one side */
  const plain = (value, digits = 4) => (typeof value === "number" ? value.toFixed(digits) : value === null || value === undefined ? "–" : String(value));
  const normalised = (rule, side) => side[3].map((logprob, choice) => {
    if (typeof logprob !== "number") return logprob;
    const place = { char: 0, byte: 1, token: 2 }[rule];
    if (rule === "pmi") return side[5] && typeof side[5][choice] === "number" ? logprob - side[5][choice] : null;
    if (place === undefined) return logprob;
    const length = index.lists[side[4][place]][choice];
    return length >= 1 ? logprob / length : null;
  });
  const ranksOf = (scores, atol) => scores.map((score) => {
    if (typeof score !== "number") return "–";
    const better = scores.filter((other) => typeof other === "number" && other > score + atol).length;
    const level = scores.filter((other) => typeof other === "number" && Math.abs(other - score) <= atol).length;
    return `${better + 1}${level > 1 ? " =" : ""}`;
  });
  const table = (heads, rows, label) => {
    const head = make("tr");
    for (const [text, css] of heads) { const cell = make("th", css, text); cell.scope = "col"; head.append(cell); }
    const body = make("tbody");
    for (const cells of rows) body.append(make("tr", "", ...cells));
    const wrapper = make("div", "scroll", make("table", "", make("thead", "", head), body));
    wrapper.tabIndex = 0;
    wrapper.setAttribute("role", "region");
    wrapper.setAttribute("aria-label", label);
    return wrapper;
  };
  const cell = (content, css = "") => make("td", css, content);

  const choicesTable = (row, side, number) => {
    const rule = index.sides[number];
    const [, gold, choices] = row;
    if (!side[3].length) return make("p", "note", side[9] ? "This side generated its answer, so its choices have no scores." : "No score of any choice is logged.");
    const scores = normalised(rule.normalisation, side);
    const ranks = ranksOf(scores, rule.atol);
    const lengths = side[4].map((place) => index.lists[place]);
    const rows = choices.map((choice, at) => [
      cell(make("span", "text", `${letter(at)}  ${choice}${at === gold ? "  ✓ right answer" : ""}`)),
      cell(plain(side[3][at]), "r"), cell(String(lengths[0][at] ?? "–"), "r"), cell(String(lengths[1][at] ?? "–"), "r"),
      cell(String(lengths[2][at] || "–"), "r"), cell(plain(scores[at]), "r"), cell(ranks[at], "r"),
    ]);
    const heads = [["choice", ""], ["logprob, nats", "r"], ["characters", "r"], ["bytes", "r"], ["tokens", "r"], [`score (${rule.normalisation})`, "r"], ["rank", "r"]];
    return table(heads, rows, `Choices as ${rule.name} scores them`);
  };

  /* Which switch flips the item */
  const fraction = (above, below) => {
    if (!above) return "0";
    const common = (x, y) => (y ? common(y, x % y) : Math.abs(x));
    const shared = common(above, below);
    return below / shared === 1 ? String(above / shared) : `${above / shared}/${below / shared}`;
  };
  const describe = (row, at) => {
    const pick = row[5][at];
    const credit = fraction(row[6][at], index.denominators[0]);
    return `${letter(pick)}, ${credit === "1" ? "right" : credit === "0" ? "wrong" : `credit ${credit}`}`;
  };
  const flips = (row) => {
    if (!row[5]) return [row[8] ? `Unexplained: ${row[8]}.` : "This item cannot be replayed between the protocols."];
    const at = new Map(index.cells.map((found, place) => [found.switched.join(), place]));
    const every = index.switches.map((_, bit) => bit);
    const ends = [["lm_eval", 0, []], ["inspect", 1, every]];
    const said = [];
    for (const [, side, base] of ends) {
      const start = at.get(base.join());
      if (start === undefined) continue;
      const found = every.map((bit) => {
        const target = base.includes(bit) ? base.filter((other) => other !== bit) : [...base, bit].sort((x, y) => x - y);
        const place = at.get(target.join());
        if (place === undefined) return null;
        const label = index.switches[bit][1];
        if (row[6][place] !== row[6][start]) return `switching ${label} flips it (${describe(row, place)})`;
        if (row[5][place] !== row[5][start]) return `switching ${label} changes the pick (${describe(row, place)}), not the credit`;
        return null;
      }).filter(Boolean);
      said.push(`From ${index.sides[side].name}'s protocol (${describe(row, start)}): ${found.length ? found.join("; ") : "no single switch changes anything"}.`);
    }
    const shares = index.factors.map(([, label], place) => [label, row[7][place]]).filter(([, share]) => share);
    said.push(shares.length
      ? `Its share of each component: ${shares.map(([label, share]) => `${label} ${share > 0 ? "+" : ""}${fraction(share, index.denominators[1])}`).join(", ")}.`
      : "No component owes anything to it.");
    if (row[8]) said.push(`Unexplained: ${row[8]}.`);
    return said;
  };
  const cellsTable = (row) => {
    const rows = index.cells.map((found, at) => [
      cell(found.template), cell(found.normalisation ?? "–"), cell(found.tie ?? "–"), cell(found.readout), cell(describe(row, at)),
      cell(found.native ? `${index.sides[found.native === "lm_eval" ? 0 : 1].name}, its own` : "off-path"),
    ]);
    return table([["template", ""], ["normalisation", ""], ["tie-break", ""], ["readout", ""], ["pick", ""], ["", ""]], rows, "The item in every cell");
  };

  /* One item */
  const dialog = find("#item");
  const inner = find(".inner", dialog);
  let current = null;
  const tool = (text, label, action) => {
    const button = make("button", "", text);
    button.type = "button";
    button.setAttribute("aria-label", label);
    button.addEventListener("click", action);
    return button;
  };
  const neighbour = (step) => {
    const place = shown[shown.indexOf(current) + step];
    return shown.includes(current) ? place : undefined;
  };
  const move = (step) => { const place = neighbour(step); if (place !== undefined) { active = shown.indexOf(place); reveal(); open(place); } };
  const toolbar = (row) => {
    const title = make("h2", "", `Item ${current + 1} of ${total}`);
    title.id = "item-title";
    const before = tool("←", "Previous item", () => move(-1));
    const after = tool("→", "Next item", () => move(1));
    before.disabled = neighbour(-1) === undefined;
    after.disabled = neighbour(1) === undefined;
    return make("div", "tools", title, before, after, tool("Close", "Close the item", () => dialog.close()));
  };
  const promptPane = (row, side, number, segments, prefixes) => {
    const rule = index.sides[number];
    const pane = make("div", "prompt");
    pane.tabIndex = 0;
    pane.setAttribute("role", "region");
    pane.setAttribute("aria-label", `Prompt of ${rule.name}`);
    if (prefixes) {
      const folded = make("details", "", make("summary", "", `${rule.shots ? `${rule.shots}-shot beginning` : "common beginning"} of the sub-task's prompts (${prefixes[number].length} characters)`));
      folded.addEventListener("toggle", () => {
        if (folded.childNodes.length === 1) folded.append(...marked(compare(...prefixes)[number], number ? "ins" : "del"));
      });
      pane.append(folded);
    }
    pane.append(...marked(segments, number ? "ins" : "del"));
    const scored = make("ul", "scored");
    index.lists[side[2]].forEach((shape, at) => scored.append(make("li", at === side[7] ? "pick" : "", textOf(shape, current, row[2]).replace(/^ /, "␣"))));
    const parts = [make("h3", "", `${rule.name}'s prompt`), pane];
    if (scored.childNodes.length) parts.push(make("p", "meta", "Scored after it (␣ is a space), the pick framed:"), scored);
    if (side[9]) parts.push(make("p", "meta", side[8] === "errored" ? "Error:" : "Generated:"), make("div", "prompt", side[9]));
    return make("div", "", ...parts);
  };
  const prompts = (row) => {
    const sides = [row[3], row[4]];
    let texts = sides.map((side) => textOf(side[1], current, row[2]));
    const folds = sides.every((side, number) => side[0] && index.sides[number].shots);
    if (!folds) texts = sides.map((side, number) => (side[0] ? index.prefixes[side[0] - 1] : "") + texts[number]);
    const prefixes = folds ? sides.map((side) => index.prefixes[side[0] - 1]) : null;
    const segments = compare(...texts);
    return make("div", "two", ...sides.map((side, number) => promptPane(row, side, number, segments[number], prefixes)));
  };
  const open = (place) => {
    current = place;
    const row = rowOf(place);
    const subject = index.subjects[index.subject[place]];
    const sides = [row[3], row[4]];
    const credits = sides.map((side, number) => {
      const native = index.cells.findIndex((found) => found.native === ["lm_eval", "inspect"][number]);
      const pick = side[7] >= 0 ? side[7] : row[5] && native >= 0 ? row[5][native] : -1;
      const state = side[8] ? ` [${side[8]}]` : "";
      return `${index.sides[number].name} picks ${letter(pick)} (${side[6] === "1" ? "right" : side[6] === "0" ? "wrong" : `credit ${side[6]}`})${state}`;
    });
    const list = make("ul", "plain", ...flips(row).map((text) => make("li", "", text)));
    inner.replaceChildren(
      toolbar(row),
      make("p", "meta", [subject, index.outcomes[index.outcome[place]][1], `key ${row[0]}`].filter(Boolean).join(" · ")),
      make("p", "text lead", index.question[place]),
      make("p", "", `${credits.join("; ")}.`),
      make("h3", "", "Which switch flips it"), list,
      make("h3", "", `Choices as ${index.sides[0].name} scores them`), choicesTable(row, row[3], 0),
      make("h3", "", `Choices as ${index.sides[1].name} scores them`), choicesTable(row, row[4], 1),
      make("h3", "", "Both prompts, differences marked"), prompts(row),
      ...(row[5] ? [make("h3", "", "What every protocol in between makes of it"), cellsTable(row)] : []),
    );
    inner.scrollTop = 0;
    if (!dialog.open) dialog.showModal();
    history.replaceState(null, "", `#item=${row[0]}`);
  };
  dialog.addEventListener("close", () => { history.replaceState(null, "", "#items"); list.focus({ preventScroll: true }); });
  dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
  dialog.addEventListener("keydown", (event) => {
    if (event.target.closest(".prompt, .scroll")) return;
    if (event.key === "ArrowLeft") move(-1);
    if (event.key === "ArrowRight") move(1);
  });
  for (const button of all("[data-item]")) button.addEventListener("click", () => open(Number(button.dataset.item)));

  refresh();
  const wanted = /^#item=(.+)$/.exec(location.hash);
  if (wanted) {
    for (let place = 0; place < total; place += 1) {
      if (rowOf(place)[0] === decodeURIComponent(wanted[1])) { open(place); break; }
    }
  }
  root.dataset.ready = "yes";
})();
