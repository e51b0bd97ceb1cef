"use strict";
// The page's script: theme, plotly.js unpacked, charts drawn in the theme's colours, search, data as CSV.
(() => {
  const root = document.documentElement, dark = matchMedia("(prefers-color-scheme: dark)");
  const byId = (id) => document.getElementById(id), read = (id) => JSON.parse(byId(id).textContent);
  const all = (what) => [...document.querySelectorAll(what)];
  const narrow = () => innerWidth < 760;

  // ---- theme: the system's, until somebody chooses -----------------------------------------------------------------
  const button = byId("theme");
  const isDark = () => (root.dataset.theme || (dark.matches ? "dark" : "light")) === "dark";
  const told = () => { button.textContent = isDark() ? "Light" : "Dark"; button.setAttribute("aria-pressed", String(isDark()));
    button.setAttribute("aria-label", isDark() ? "Switch to light colours" : "Switch to dark colours"); };
  try { const kept = localStorage.getItem("coterie-theme"); if (kept) root.dataset.theme = kept; } catch { /* no storage */ }
  const choose = (theme) => { root.dataset.theme = theme; told(); restyle(); };
  button.hidden = false; told();
  button.addEventListener("click", () => { const next = isDark() ? "light" : "dark"; choose(next);
    try { localStorage.setItem("coterie-theme", next); } catch { /* no storage */ } });
  dark.addEventListener("change", () => { told(); restyle(); });
  let before, printing = false;  // paper is white, and narrower than a screen
  addEventListener("beforeprint", () => { before = root.dataset.theme; root.dataset.theme = "light"; printing = true; restyle(); });
  addEventListener("afterprint", () => { printing = false; if (before) root.dataset.theme = before; else delete root.dataset.theme; restyle(); });

  // ---- sections in the bar -----------------------------------------------------------------------------------------
  const nav = document.querySelector(".bar nav");
  for (const h of all("section[id] > h2")) { const a = document.createElement("a"); a.href = "#" + h.parentElement.id;
    a.textContent = h.textContent; nav.append(a); }

  // ---- charts ------------------------------------------------------------------------------------------------------
  const css = (name) => getComputedStyle(root).getPropertyValue(name).trim();
  const themed = (layout) => {
    const [ink, soft, grid, zero, card] = ["--ink", "--soft", "--grid", "--zero", "--card"].map(css);
    const flat = { paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", dragmode: false,
      font: { color: soft, size: narrow() ? 12 : 13, family: getComputedStyle(document.body).fontFamily },
      hoverlabel: { bgcolor: card, bordercolor: zero, font: { color: ink } } };
    const made = { ...layout, ...flat, ...(printing ? { width: 640, autosize: false } : { autosize: true }) };
    for (const name of ["xaxis", "yaxis"]) { const axis = layout[name] || {};
      const title = axis.title && { ...axis.title, font: { size: flat.font.size } };
      made[name] = { ...axis, ...(title && { title }), gridcolor: grid, zerolinecolor: zero, linecolor: grid }; }
    return made;
  };
  const options = { responsive: true, displayModeBar: false, scrollZoom: false };
  const drawn = new Map();  // id → a function that makes [traces, layout]
  const draw = (id) => { const [data, layout] = drawn.get(id)(); return Plotly.react(id, data, themed(layout), options); };
  function restyle() { if (self.Plotly) for (const id of drawn.keys()) draw(id); }

  // ---- who gains: a row per client when few are shown, else all of them along the gains ----------------------------
  const ROWS = 40, MARK = { gains: 0, loses: 1, none: 3 }, GAIN = "#16a34a", LOSS = "#dc2626", GREY = "#94a3b8";
  const esc = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  const short = (text, most) => esc([...text].length > most ? [...text].slice(0, most - 1).join("") + "…" : text);
  const tone = (mark) => mark === MARK.gains ? GAIN : mark === MARK.loses ? LOSS : GREY;
  const who = byId("who") && read("who-gains");

  function chosen() {
    const wanted = byId("who-find").value.trim().toLowerCase(), method = who.methods[byId("who-method").value];
    const has = who.clients.map((_, i) => i).filter((i) => method.gain[i] !== null);
    const found = has.filter((i) => who.clients[i].toLowerCase().includes(wanted));
    const order = (some) => some.sort((a, b) => method.gain[b] - method.gain[a]);
    return { method, wanted, everybody: order(has), found: order(found) };
  }
  function dots(method, some, across) {
    const gains = some.map((i) => method.gain[i]), place = some.map((_, i) => i), open = "circle-open";
    const size = some.length > 400 ? 5 : some.length > ROWS ? 7 : 10;
    const text = some.map((i) => short(who.clients[i], 60) + (who.groups ? "<br>group " + who.groups[i] : ""));
    const marks = some.map((i) => method.mark[i]);
    const bars = { type: "data", array: some.map((i) => method.bound[i] || 0), thickness: some.length > 200 ? 0.8 : 1.6, width: 0, color: GREY };
    const marker = { size, color: marks.map(tone), symbol: marks.map((m) => (m === MARK.gains ? "triangle-up" : m === MARK.loses ? "triangle-down" : open)) };
    const hover = (axis) => "%{text}<br>gain %{" + axis + ":+.4g}<extra></extra>";
    return across ? { type: "scatter", mode: "markers", x: place, y: gains, error_y: bars, text, marker, hovertemplate: hover("y") }
      : { type: "scatter", mode: "markers", x: gains, y: place, error_x: bars, text, marker, hovertemplate: hover("x") };
  }
  function whoFigure() {
    const { method, wanted, everybody, found } = chosen(), n = who.clients.length;
    byId("who-count").textContent = wanted ? `${found.length.toLocaleString("en")} of ${n.toLocaleString("en")} clients` : `${n.toLocaleString("en")} clients`;
    const gain = `gain in ${who.unit}`, base = { showlegend: false, margin: { l: 8, r: 12, t: 10, b: 8 } };
    if (found.length && found.length <= ROWS) {
      const trace = dots(method, found, false), most = narrow() ? 14 : 30;
      return [[trace], { ...base, height: 70 + 22 * found.length, xaxis: { title: { text: gain }, automargin: true, zeroline: true },
        yaxis: { automargin: true, tickvals: trace.y, ticktext: found.map((i) => short(who.clients[i], most)),
          range: [found.length - 0.4, -0.6], zeroline: false, showgrid: found.length <= 15 } }];
    }
    const trace = dots(method, everybody, true), layout = { ...base, height: 400, yaxis: { title: { text: gain }, automargin: true, zeroline: true },
      xaxis: { title: { text: "clients, the largest gain first" }, automargin: true, zeroline: false, showgrid: false } };
    if (!wanted) return [[trace], layout];
    const hit = new Set(found);
    trace.marker.opacity = everybody.map((i) => (hit.has(i) ? 1 : 0.12)); trace.error_y.thickness = 0;
    return [[trace], layout];
  }
  // The table holds so many clients at a time; its first row, the mean, stays.
  const sign = { 0: "▲ ", 1: "▼ " }, kind = { 0: "gains", 1: "loses" };
  function number(value, plus) {
    if (value === null) return "–";
    const size = Math.abs(value), digits = size === 0 || (size >= 0.01 && size < 100) ? value.toFixed(3) : size >= 100 && size < 1e4 ? value.toFixed(1)
      : size >= 1e4 && size < 1e5 ? value.toFixed(0) : Number(value.toPrecision(size < 0.01 ? 2 : 3)).toString();
    return plus && value >= 0 ? "+" + digits : digits;
  }
  function line(i) {
    const tr = document.createElement("tr"), th = document.createElement("th"); th.scope = "row"; th.textContent = who.clients[i]; tr.append(th);
    for (const m of who.methods) { const td = tr.insertCell(); td.textContent = number(m.score[i]);
      if (m.base || m.score[i] === null) continue;
      const g = document.createElement("span"); g.className = "g"; g.textContent = (sign[m.mark[i]] || "") + number(m.gain[i], true);
      td.append(g); td.className = kind[m.mark[i]] || ""; td.title = `${who.marks[m.mark[i]]}; standard error ${number(m.error[i])}`; }
    return tr;
  }
  function filter() {
    const wanted = byId("who-find").value.trim().toLowerCase(), table = document.querySelector("table[data-find='who-find']");
    const found = who.clients.map((_, i) => i).filter((i) => who.clients[i].toLowerCase().includes(wanted)).slice(0, who.rows);
    table.tBodies[0].replaceChildren(table.tBodies[0].rows[0], ...found.map(line));
    if (self.Plotly) draw("who");
  }
  if (who) { byId("who-find").addEventListener("input", filter); byId("who-method").addEventListener("change", () => self.Plotly && draw("who")); }
  function whoTable() {
    const columns = ["method", "client", "score", "gain", "standard_error", "mark", ...(who.groups ? ["group"] : [])], values = columns.map(() => []);
    for (const m of who.methods) who.clients.forEach((name, i) => [m.name, name, m.score[i], m.gain[i], m.error[i], who.marks[m.mark[i]], who.groups && who.groups[i]]
      .slice(0, columns.length).forEach((v, k) => values[k].push(v)));
    return { columns, values };
  }

  // ---- data and settings as files ----------------------------------------------------------------------------------
  const cell = (value) => {
    if (value === null || value === undefined) return "";
    let text = String(value);
    if (typeof value === "string" && /^[=+@\t\r-]/.test(text) && Number.isNaN(Number(text))) text = "'" + text;  // no formula in a spreadsheet
    return /[",\n\r]/.test(text) ? `"${text.replace(/"/g, '""')}"` : text;
  };
  const csv = ({ columns, values }) => [columns, ...(values[0] || []).map((_, i) => values.map((v) => v[i]))]
    .map((line) => line.map(cell).join(",")).join("\r\n") + "\r\n";
  const data = (id) => (id === "who" ? whoTable() : read(id + "-data"));
  function save(text, name, kind) {
    const a = document.createElement("a"); a.href = URL.createObjectURL(new Blob([text], { type: kind })); a.download = name;
    document.body.append(a); a.click(); a.remove(); setTimeout(() => URL.revokeObjectURL(a.href), 1000);
  }
  for (const b of all("button.csv")) b.addEventListener("click", () => save("\ufeff" + csv(data(b.dataset.for)), b.dataset.name, "text/csv"));
  for (const b of all("button.file")) b.addEventListener("click", () => save(byId(b.dataset.for).textContent, b.dataset.name, "text/plain"));
  self.coterie = { csv: (id) => csv(data(id)) };

  // ---- unpack plotly.js, then draw ---------------------------------------------------------------------------------
  async function unpack() {
    const packed = Uint8Array.from(atob(byId("plotly").textContent.trim()), (c) => c.charCodeAt(0));
    const text = await new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
    const script = document.createElement("script"); script.textContent = text; document.head.append(script); byId("plotly").remove();
  }
  async function start() {
    if (!("DecompressionStream" in self)) { byId("no-charts").hidden = false; return; }
    await unpack();
    if (who) drawn.set("who", whoFigure);
    for (const script of all("script[id$='-figure']")) { const figure = JSON.parse(script.textContent), id = script.id.slice(0, -7);
      drawn.set(id, () => [figure.data, figure.layout]); }
    for (const id of drawn.keys()) await draw(id);
    let width = narrow(); addEventListener("resize", () => { if (narrow() !== width) { width = narrow(); restyle(); } });
    root.dataset.ready = "yes";
  }
  start();
})();
