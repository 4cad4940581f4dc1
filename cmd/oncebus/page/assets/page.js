// The live page: reads the stream of the process and draws it. It keeps nothing but the
// token, in this tab, and the chosen colours.
"use strict";

(() => {
  const $ = (id) => document.getElementById(id);
  const TOKEN = "oncebus-token", THEME = "oncebus-theme";
  const QUIET_MAX = 15000; // ms without an event after which the connection counts as lost
  const WAIT_MIN = 500, WAIT_MAX = 4000; // ms between two attempts to connect
  const HIDDEN_MAX = 30000; // ms after which a hidden page stops reading
  const TASKS_SHOWN = 40;

  // ---- units -----------------------------------------------------------------------------
  const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
  const tenth = new Intl.NumberFormat("en", { minimumFractionDigits: 1, maximumFractionDigits: 1 });
  const count = (n) => whole.format(n);
  const rate = (n) => (n !== 0 && n < 99.95 ? tenth.format(n) : whole.format(n));
  const percent = (share) => (share !== 0 && share < 0.9995 ? tenth.format(share * 100) : whole.format(share * 100));
  const short = (n) => {
    for (const [size, unit] of [[1e9, " G"], [1e6, " M"], [1e3, " k"]]) {
      if (Math.abs(n) >= size) return +(n / size).toPrecision(3) + unit;
    }
    return String(+n.toPrecision(3));
  };
  const duration = (s) => {
    if (s < 0) return "unknown";
    s = +s.toPrecision(6);
    if (s === 0) return "0 s";
    if (s < 0.001) return whole.format(s * 1e6) + " µs";
    if (s < 0.01) return tenth.format(s * 1e3) + " ms";
    if (s < 1) return whole.format(s * 1e3) + " ms";
    if (s < 59.95) return tenth.format(s) + " s";
    const seconds = Math.round(s), minutes = Math.floor(seconds / 60), hours = Math.floor(minutes / 60);
    if (hours === 0) return minutes + " min " + (seconds % 60) + " s";
    if (hours < 24) return hours + " h " + (minutes % 60) + " min";
    return Math.floor(hours / 24) + " d " + (hours % 24) + " h";
  };
  const bytes = (n) => {
    for (const [size, unit] of [[2 ** 40, "TiB"], [2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]]) {
      if (n >= size) return tenth.format(n / size) + " " + unit;
    }
    return whole.format(n) + " B";
  };
  const clock = (time) => new Date(time).toLocaleTimeString("en-GB");
  const moment = (seconds, step) => new Date(seconds * 1000).toLocaleTimeString("en-GB", step < 60 ? undefined : { hour: "2-digit", minute: "2-digit" });
  const words = (name) => name.replaceAll("_", " ");

  // ---- the document ----------------------------------------------------------------------
  const setText = (node, text) => { if (node.textContent !== text) node.textContent = text; };
  const setLevel = (node, level) => {
    if (!level) node.removeAttribute("data-level");
    else if (node.dataset.level !== level) node.dataset.level = level;
  };
  const element = (name, className, text) => {
    const node = document.createElement(name);
    if (className) node.className = className;
    if (text !== undefined) node.textContent = text;
    return node;
  };

  // rows makes the rows of a table. A cell is a text, or has text, and where needed className,
  // level and why. The first one is the row's header.
  const rows = (body, list) => {
    while (body.rows.length > list.length) body.deleteRow(-1);
    list.forEach((cells, r) => {
      const row = body.rows[r] || body.insertRow();
      while (row.cells.length > cells.length) row.deleteCell(-1);
      cells.forEach((cell, c) => {
        if (typeof cell === "string") cell = { text: cell };
        let node = row.cells[c];
        if (!node) {
          node = document.createElement(c === 0 ? "th" : "td");
          if (c === 0) node.scope = "row";
          row.append(node);
        }
        const key = JSON.stringify(cell);
        if (node.cellKey === key) return;
        node.cellKey = key;
        node.className = cell.className || "";
        node.replaceChildren();
        if (cell.level) {
          const tag = element("span", "tag", cell.text);
          tag.dataset.level = cell.level;
          node.append(tag);
        } else {
          node.append(cell.text);
        }
        if (cell.why) node.append(element("span", "why", cell.why));
      });
    });
  };
  const number = (text, zero) => ({ text, className: zero ? "n zero" : "n" });

  // ---- charts ----------------------------------------------------------------------------
  const history = { names: [], fine: null, coarse: null };
  const limits = { fine: 300, coarse: 360 };
  let range = "fine", split = "verdict";
  const COLOURS = { unique: 0, duplicate: 1, in_progress: 2, replayed: 3, after_window: 4, late: 6, missing_key: 5, invalid: 5, limited: 7, collision: 7, bypassed: 6 };

  const colour = (n) => getComputedStyle(document.documentElement).getPropertyValue("--c" + (n % 8)).trim();
  const theme = (name) => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();

  const load = (ring, data) => {
    history[ring] = { times: data.times.slice(), series: data.series.map((s) => (s ? s.slice() : null)) };
  };
  const extend = (sample) => {
    const ring = history[sample.ring];
    if (!ring || ring.times.length && sample.time <= ring.times[ring.times.length - 1]) return;
    ring.times.push(sample.time);
    sample.values.forEach((v, i) => {
      if (!ring.series[i] && v !== 0) ring.series[i] = new Array(ring.times.length - 1).fill(0);
      if (ring.series[i]) ring.series[i].push(v);
    });
    while (ring.times.length > limits[sample.ring]) {
      ring.times.shift();
      ring.series.forEach((s) => s && s.shift());
    }
  };

  // columns returns the times of the range, in s, and a function that returns a series. Of an
  // hour the newest seconds come from the fine samples.
  const columns = () => {
    const fine = history.fine, base = history[range];
    let times = base.times, from = fine.times.length;
    if (range === "coarse") {
      const last = times.length ? times[times.length - 1] : 0;
      from = fine.times.findIndex((t) => t > last);
      if (from < 0) from = fine.times.length;
      if (fine.times.length - from < 2) from = fine.times.length;
      times = times.concat(fine.times.slice(from));
    }
    const series = (name) => {
      const i = history.names.indexOf(name);
      const of = (ring, n) => (i >= 0 && ring.series[i] ? ring.series[i] : new Array(n).fill(0));
      const values = of(base, base.times.length);
      return range === "coarse" ? values.concat(of(fine, fine.times.length).slice(from)) : values;
    };
    const named = (prefix) => history.names.filter((n) => n.startsWith(prefix) && series(n).some((v) => v !== 0));
    return { times: times.map((t) => t / 1000), series, named };
  };

  class Chart {
    constructor(id, format, series, options) {
      this.figure = $(id);
      this.plot = this.figure.querySelector(".plot");
      this.legend = this.figure.querySelector(".legend");
      this.title = this.figure.querySelector("h2").textContent;
      this.format = format;
      this.series = series; // of columns(): a list of {label, colour, values, format, scale}
      this.options = options || {};
    }
    draw(data) {
      const list = this.series(data);
      const key = JSON.stringify([list.map((s) => [s.label, s.colour]), this.plot.clientWidth, theme("c0")]);
      const values = this.options.stack ? stacked(list) : list.map((s) => s.values);
      // The last one is drawn on top. A stack begins with its sum.
      const order = this.options.stack ? values.map((_, i) => values.length - 1 - i) : values.map((_, i) => i);
      const table = [data.times].concat(order.map((i) => values[i]));
      if (this.key !== key) {
        this.key = key;
        if (this.chart) this.chart.destroy();
        this.chart = new uPlot(this.config(list, order), table, this.plot);
      } else {
        this.chart.setData(table);
      }
      this.describe(list);
    }
    config(list, order) {
      const axis = (more) => ({
        stroke: theme("muted"), font: "12px system-ui, sans-serif", grid: { stroke: theme("grid"), width: 1 }, ticks: { show: false }, ...more,
      });
      const scales = { x: { time: true }, y: { range: (u, low, high) => [0, Math.max(high || 0, this.options.least || 1) * 1.08] } };
      const axes = [axis({ grid: { show: false }, space: 84, size: 30, values: (u, ticks, i, space, step) => ticks.map((t) => moment(t, step)) }), axis({ size: 58, values: (u, ticks) => ticks.map(this.options.tick || this.format) })];
      const second = list.find((s) => s.scale);
      if (second) {
        scales[second.scale] = { range: (u, low, high) => [0, Math.max(high || 0, 1) * 1.08] };
        axes.push(axis({ scale: second.scale, side: 1, size: 58, grid: { show: false }, values: (u, ticks) => ticks.map((v) => short(v) + " s") }));
      }
      return {
        width: Math.max(this.plot.clientWidth, 120), height: this.plot.clientHeight, legend: { show: false }, padding: [8, second ? 0 : 30, 0, 0],
        cursor: { sync: { key: "oncebus" }, drag: { x: false, y: false }, y: false, points: { size: 6 } },
        scales, axes,
        hooks: { setCursor: [(u) => this.describe(this.last, u.cursor.idx)] },
        series: [{}].concat(order.map((i) => ({
          label: list[i].label, stroke: colour(list[i].colour), width: 1.5, scale: list[i].scale || "y", points: { show: false },
          fill: this.options.stack ? colour(list[i].colour) : list[i].scale ? undefined : colour(list[i].colour) + "22",
        }))),
      };
    }
    // describe writes the values at an index, the newest without one, and the chart's text
    // alternative.
    describe(list, index) {
      if (!list) return;
      this.last = list;
      const at = (s) => s.values[index === undefined || index === null ? s.values.length - 1 : index] || 0;
      while (this.legend.children.length > list.length) this.legend.lastElementChild.remove();
      list.forEach((s, i) => {
        let item = this.legend.children[i];
        if (!item) {
          item = element("li");
          item.append(element("span", "swatch"), element("span"), " ", element("b"));
          this.legend.append(item);
        }
        item.children[0].dataset.c = String(s.colour % 8);
        setText(item.children[1], s.label);
        setText(item.children[2], (s.format || this.format)(at(s)));
      });
      const most = (s) => s.values.reduce((a, b) => Math.max(a, b), 0);
      const text = list.map((s) => `${s.label} ${(s.format || this.format)(at(s))}, highest ${(s.format || this.format)(most(s))}`).join("; ");
      const label = `${this.title}, last ${range === "fine" ? "5 minutes" : "hour"}: ${text || "nothing yet"}`;
      if (this.plot.getAttribute("aria-label") !== label) this.plot.setAttribute("aria-label", label);
    }
  }
  const stacked = (list) => {
    let below = null;
    return list.map((s) => (below = s.values.map((v, i) => v + (below ? below[i] : 0))));
  };

  const charts = [
    new Chart("chart-events", (v) => rate(v), (data) => {
      if (split === "route") {
        const prefix = "route_events_per_second/", others = "route_events_per_second_of_others";
        const list = data.named(prefix).map((n, i) => ({ label: n.slice(prefix.length), colour: i, values: data.series(n) }));
        if (data.series(others).some((v) => v !== 0)) list.push({ label: "others", colour: 4, values: data.series(others) });
        return list.length ? list : [{ label: "no events", colour: 4, values: data.times.map(() => 0) }];
      }
      const prefix = "events_per_second/";
      const list = data.named(prefix).map((n) => ({ label: words(n.slice(prefix.length)), colour: COLOURS[n.slice(prefix.length)] ?? 4, values: data.series(n) }));
      return list.length ? list : [{ label: "no events", colour: 4, values: data.times.map(() => 0) }];
    }, { stack: true, least: 10, tick: short }),
    new Chart("chart-share", (v) => percent(v) + " %", (data) => [{ label: "duplicates", colour: 1, values: data.series("duplicate_share") }], { least: 0.05, tick: (v) => short(v * 100) + " %" }),
    new Chart("chart-lag", (v) => short(v), (data) => [
      { label: "records", colour: 0, values: data.series("lag_records"), format: (v) => count(v) },
      { label: "oldest waits", colour: 5, values: data.series("lag_seconds"), scale: "s", format: duration },
    ], { least: 10 }),
    new Chart("chart-commit", duration, (data) => [
      { label: "99 %", colour: 2, values: data.series("commit_p99_seconds") },
      { label: "median", colour: 3, values: data.series("commit_p50_seconds") },
    ], { least: 0.002 }),
  ];
  const drawCharts = () => {
    if (!history.fine || $("live").hidden) return;
    const data = columns();
    charts.forEach((c) => c.draw(data));
  };

  // ---- the snapshot ----------------------------------------------------------------------
  let latest = null, allTasks = false;
  const taskLevel = (t) => (t.state === "running" ? "good" : t.restore && t.restore.stalled ? "bad" : "wait");

  const show = (s) => {
    latest = s;
    $("live").hidden = false;
    setText($("app"), s.app);
    setText($("whose"), `${s.role} process ${s.instance}`);
    document.title = (s.ready ? "" : "! ") + `oncebus ${s.app} ${s.instance}`;
    setText($("version"), `oncebus ${s.version} ·`);
    setText($("process"), `started ${new Date(s.started).toLocaleString("en-GB")}${s.process.resident_bytes ? ` · ${tenth.format(s.process.cpu)} cores, ${bytes(s.process.resident_bytes)} of memory` : ""} · figures of this process; the app's other processes have pages of their own`);
    showStatus();
    showTiles(s);
    showWaits(s);
    showTasks(s);
    showVerdicts(s);
    showSenders(s);
    showShadows(s);
    rows($("commits").tBodies[0], s.commits.map((c) => [words(c.stage), number(count(c.total)), number(rate(c.per_second), !c.per_second), number(duration(c.p50_seconds)), number(duration(c.p99_seconds))]));
    $("http").hidden = !s.http;
    if (s.http) {
      setText($("http-note"), `${rate(s.http.per_second)} requests/s, ${count(s.http.in_flight)} in flight, p50 ${duration(s.http.p50_seconds)}, p99 ${duration(s.http.p99_seconds)}`);
      rows($("codes").tBodies[0], s.http.codes.map((c) => [c.code, number(count(c.total)), number(rate(c.per_second), !c.per_second)]));
    }
    showLog(s.log);
    rows($("routes").tBodies[0], s.routes.map((r) => [r.name, r.mode + (r.off ? ", switched off" : ""), { text: r.topics.join(", "), className: "wrap" }, { text: r.key, className: "wrap" }, r.window.replace(/(\D)0s$/, "$1").replace(/h0m$/, "h"), r.output, r.dead_letter]));
  };

  const showTiles = (s) => {
    setText($("events-rate"), rate(s.events.per_second));
    setText($("events-total"), count(s.events.total));
    setText($("share"), percent(s.events.duplicate_share));
    setText($("duplicates-total"), count(s.events.duplicates));
    const lagKnown = s.tasks.length > s.lag.unknown;
    setText($("lag-records"), lagKnown ? count(s.lag.records) : "–");
    setText($("lag-seconds"), lagKnown ? duration(s.lag.seconds) : "–");
    setText($("inputs"), s.inputs ? `, ${count(s.inputs.records)} in the inputs${s.inputs.unknown ? `, unknown partitions: ${s.inputs.unknown}` : ""}` : "");
    const commit = s.commits.find((c) => c.stage === "dedup") || s.commits[0];
    setText($("commit-p50"), commit && commit.total ? duration(commit.p50_seconds) : "–");
    setText($("commit-p99"), commit && commit.total ? duration(commit.p99_seconds) : "–");
    const running = s.tasks.filter((t) => t.state === "running").length;
    setText($("tasks-running"), count(running));
    setText($("tasks-total"), count(s.tasks.length));
    const others = {};
    s.tasks.forEach((t) => { if (t.state !== "running") others[t.state] = (others[t.state] || 0) + 1; });
    const names = Object.keys(others).sort().map((n) => `${others[n]} ${n}`);
    const left = s.tasks.reduce((n, t) => n + (t.restore ? t.restore.remaining_records : 0), 0);
    if (left > 0) names.push(`${count(left)} records left`);
    setText($("tasks-sub"), s.role === "ingress" ? "an ingress has none" : names.length ? names.join(", ") : s.tasks.length ? "none waits" : "none assigned");
    setLevel($("tasks-running").closest(".tile"), running < s.tasks.length ? "wait" : "");
    setText($("disk-state"), s.disk ? bytes(s.disk.state_bytes) : "–");
    setText($("disk-free"), s.disk ? bytes(s.disk.free_bytes) : "–");
    setLevel($("disk-state").closest(".tile"), s.disk && s.disk.paused ? "bad" : "");
  };

  const showWaits = (s) => {
    const day = (at) => new Date(at).toLocaleString("en-GB");
    $("hold").hidden = !s.hold;
    if (s.hold) setText($("hold-text"), `Since ${day(s.hold.since)}${s.hold.by ? " by " + s.hold.by : ""}: ${s.hold.reason}. No input is read; oncebus release ends it.`);
    $("held").hidden = !s.time_held;
    setText($("held-text"), (s.time_held || []).map((h) => `${h.source} keeps that of ${h.namespace} back by ${duration(h.behind_ms / 1000)}${h.since ? " since " + day(h.since) : ""}.`).join(" "));
  };

  const restoreText = (t) => {
    if (!t.restore) return "";
    if (t.restore.remaining_records === 0) return "has read all records";
    const left = `${count(t.restore.remaining_records)} records left`;
    if (t.restore.stalled) return left + ", makes no progress";
    if (t.restore.eta_seconds === undefined) return left;
    return `${left}, ${rate(t.restore.per_second)}/s, ready in ${duration(t.restore.eta_seconds)}`;
  };
  const showTasks = (s) => {
    const order = (t) => (t.state === "running" ? 1 : 0);
    const sorted = s.tasks.map((t, i) => [t, i]).sort((a, b) => order(a[0]) - order(b[0]) || a[1] - b[1]).map((p) => p[0]);
    const shown = allTasks ? sorted : sorted.slice(0, TASKS_SHOWN);
    setText($("tasks-note"), s.tasks.length ? "" : s.role === "ingress" ? "an ingress has none" : "none is assigned to this process");
    rows($("tasks").tBodies[0], shown.map((t) => [
      t.task, { text: t.state, level: taskLevel(t), why: t.reason }, `${t.process} · ${t.worker.replace(`${s.app}-${t.process}-`, "")}`,
      number(t.lag_records < 0 ? "unknown" : count(t.lag_records), t.lag_records <= 0), number(duration(t.lag_seconds), t.lag_seconds <= 0),
      number(t.restore ? "–" : count(t.keys), !t.keys), number(t.restore ? "–" : bytes(t.disk_bytes), !t.disk_bytes), restoreText(t),
    ]));
    // Tasks that do not run are what a reader came for: then they come before the charts.
    const panel = $("tasks-panel"), first = s.tasks.some((t) => t.state !== "running");
    if (first !== (panel.nextElementSibling === $("charts"))) {
      if (first) $("charts").before(panel);
      else $("charts").after(panel);
    }
    const more = $("more-tasks");
    more.hidden = s.tasks.length <= TASKS_SHOWN;
    setText(more, allTasks ? `Show ${TASKS_SHOWN}` : `Show all ${s.tasks.length} tasks`);
  };

  const showVerdicts = (s) => {
    const names = s.events.verdicts.map((v) => v.verdict);
    const head = ["Route", "per second", "duplicates"].concat(names.map(words), "all");
    const headKey = head.join();
    const table = $("verdicts");
    if (table.headKey !== headKey) {
      table.headKey = headKey;
      const row = element("tr");
      head.forEach((text, i) => {
        const cell = element("th", i ? "n" : "", text);
        cell.scope = "col";
        row.append(cell);
      });
      table.tHead.replaceChildren(row);
    }
    const line = (name, e) => {
      const by = {};
      e.verdicts.forEach((v) => (by[v.verdict] = v.total));
      return [name, number(rate(e.per_second), !e.per_second), number(percent(e.duplicate_share) + " %", !e.duplicates)]
        .concat(names.map((n) => number(count(by[n] || 0), !by[n])), [number(count(e.total), !e.total)]);
    };
    const list = s.routes.map((r) => line(r.off ? r.name + " (off)" : r.name, r.events));
    if (s.routes.length > 1) list.push(line("all routes", s.events));
    rows(table.tBodies[0], list);
  };

  const showShadows = (s) => {
    $("no-shadows").hidden = !!s.shadows;
    $("shadows-scroll").hidden = !s.shadows;
    rows($("shadows").tBodies[0], (s.shadows || []).map((x) => [x.route, number(count(x.would_drop), !x.would_drop), number(count(x.would_emit), !x.would_emit), number(count(x.both_emit)), number(count(x.both_drop)), number(count(x.no_key), !x.no_key)]));
  };

  const showSenders = (s) => {
    $("no-senders").hidden = !!s.senders;
    $("senders-scroll").hidden = !s.senders;
    rows($("senders").tBodies[0], (s.senders || []).map((x) => [{ text: x.sender, className: "wrap" }, x.route, number(count(x.duplicates)), number(rate(x.per_second), !x.per_second)]));
  };

  const showLog = (entries) => {
    $("no-log").hidden = entries.length > 0;
    const list = $("log");
    const key = JSON.stringify(entries);
    if (list.key === key) return;
    list.key = key;
    list.replaceChildren(...entries.map((e) => {
      const item = element("li"), head = element("div", "head"), level = element("span", "tag", e.level);
      level.dataset.level = e.level === "ERROR" ? "bad" : "wait";
      const time = element("time", "muted", clock(e.time));
      time.dateTime = e.time;
      head.append(time, level, element("strong", "", e.text));
      if (e.count > 1) head.append(element("span", "muted", `${e.count} times`));
      item.append(head);
      if (e.detail) item.append(element("div", "detail", e.detail));
      if (e.advice) {
        const advice = element("div", "advice", e.advice);
        if (e.page) advice.append(" ", element("code", "muted", "deployments/" + e.page));
        item.append(advice);
      }
      return item;
    }));
  };

  // ---- status ----------------------------------------------------------------------------
  let connection = "connecting"; // connecting, connected, lost, token, refused or paused
  let since = 0, why = "";
  const showStatus = () => {
    const pill = $("pill"), alarm = $("alarm");
    let level = "good", text = "ready", title = "", detail = "";
    if (connection !== "connected") {
      level = connection === "lost" || connection === "refused" ? "bad" : "wait";
      text = { connecting: "connecting", lost: "disconnected", token: "token needed", refused: "refused", paused: "paused" }[connection];
      if (connection === "lost") {
        title = "Disconnected.";
        detail = `The process does not answer since ${clock(since)}${latest ? "; the figures are those of " + clock(latest.time) : ""}. The page connects again by itself.${why ? " (" + why + ")" : ""}`;
      } else if (connection === "refused") {
        title = "Refused.";
        detail = why;
      }
    } else if (latest && latest.broker_up === false) {
      level = "bad"; text = "Kafka is down"; title = "No broker responds."; detail = "Events wait in Kafka. The process goes on by itself when a broker responds.";
    } else if (latest && latest.disk && latest.disk.paused) {
      level = "bad"; text = "paused"; title = "Tasks wait for disk space."; detail = latest.reason || "";
    } else if (latest && !latest.ready) {
      level = "wait"; text = "not ready"; title = "Not ready."; detail = latest.reason || "";
    }
    setText(pill, text);
    setLevel(pill, level);
    alarm.hidden = !title;
    setLevel(alarm, level);
    setText($("alarm-title"), title);
    setText($("alarm-text"), detail);
    $("token").hidden = connection !== "token";
    document.body.classList.toggle("stale", connection !== "connected" && connection !== "connecting");
  };
  const setConnection = (next, reason) => {
    if (next === "lost" && connection !== "lost") since = Date.now();
    connection = next;
    why = reason || "";
    showStatus();
  };

  // ---- the stream ------------------------------------------------------------------------
  const take = (name, data) => {
    switch (name) {
      case "history":
        history.names = data.names;
        load("fine", data.fine);
        load("coarse", data.coarse);
        break;
      case "sample":
        extend(data);
        break;
      case "snapshot":
        show(data);
        drawCharts();
        break;
      case "failed":
        setConnection("refused", data);
        break;
    }
  };

  // read passes the events of a response to take until it ends.
  const read = async (body, alive) => {
    const reader = body.pipeThrough(new TextDecoderStream()).getReader();
    for (let rest = ""; ;) {
      const { value, done } = await reader.read();
      if (done) return;
      alive();
      const parts = (rest + value).split("\n\n");
      rest = parts.pop();
      for (const part of parts) {
        let name = "", data = "";
        for (const line of part.split("\n")) {
          if (line.startsWith("event: ")) name = line.slice(7);
          if (line.startsWith("data: ")) data += line.slice(6);
        }
        if (name === "snapshot" && connection !== "connected") setConnection("connected");
        take(name, JSON.parse(data));
      }
    }
  };

  let wake = () => {}, abort = () => {};
  const pause = (ms) => new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    wake = () => { clearTimeout(timer); resolve(); };
  });

  const connect = async () => {
    for (let wait = WAIT_MIN; ;) {
      const stop = new AbortController();
      let timer;
      const alive = () => {
        clearTimeout(timer);
        timer = setTimeout(() => stop.abort(), QUIET_MAX);
      };
      abort = () => stop.abort();
      let reason = "";
      try {
        const token = sessionStorage.getItem(TOKEN);
        alive();
        const response = await fetch("live", { headers: token ? { Authorization: "Bearer " + token } : {}, cache: "no-store", credentials: "omit", signal: stop.signal });
        if (response.status === 401) {
          $("token-wrong").hidden = !token;
          sessionStorage.removeItem(TOKEN);
          setConnection("token");
          $("token-value").focus();
          await new Promise((resolve) => { wake = resolve; });
          continue;
        }
        if (!response.ok) throw new Error(`${response.status} ${(await response.text()).trim()}`);
        wait = WAIT_MIN;
        await read(response.body, alive);
      } catch (error) {
        reason = error.name === "AbortError" || error instanceof TypeError ? "" : error.message;
      } finally {
        clearTimeout(timer);
      }
      if (document.hidden && paused) {
        setConnection("paused");
        await new Promise((resolve) => { wake = resolve; });
        continue;
      }
      setConnection("lost", reason);
      await pause(wait);
      wait = Math.min(2 * wait, WAIT_MAX);
    }
  };

  let paused = false, hiddenTimer;
  document.addEventListener("visibilitychange", () => {
    clearTimeout(hiddenTimer);
    if (document.hidden) {
      hiddenTimer = setTimeout(() => { paused = true; abort(); }, HIDDEN_MAX);
    } else {
      paused = false;
      wake();
    }
  });
  $("token").addEventListener("submit", (event) => {
    event.preventDefault();
    sessionStorage.setItem(TOKEN, $("token-value").value.trim());
    $("token-value").value = "";
    wake();
  });

  // ---- tools -----------------------------------------------------------------------------
  const choose = (attribute, set) => {
    const buttons = document.querySelectorAll(`[data-${attribute}]`);
    buttons.forEach((button) => button.addEventListener("click", () => {
      buttons.forEach((b) => b.setAttribute("aria-pressed", String(b === button)));
      set(button.dataset[attribute]);
      drawCharts();
    }));
  };
  choose("range", (value) => { range = value; });
  choose("split", (value) => { split = value; });
  $("more-tasks").addEventListener("click", () => {
    allTasks = !allTasks;
    if (latest) showTasks(latest);
  });

  const THEMES = ["auto", "light", "dark"];
  const setTheme = (name) => {
    if (name === "auto") document.documentElement.removeAttribute("data-theme");
    else document.documentElement.dataset.theme = name;
    setText($("theme"), name[0].toUpperCase() + name.slice(1));
    $("theme").setAttribute("aria-label", "Colours: " + $("theme").textContent);
    drawCharts();
  };
  let chosen = localStorage.getItem(THEME);
  if (!THEMES.includes(chosen)) chosen = "auto";
  $("theme").addEventListener("click", () => {
    chosen = THEMES[(THEMES.indexOf(chosen) + 1) % THEMES.length];
    localStorage.setItem(THEME, chosen);
    setTheme(chosen);
  });
  setTheme(chosen);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawCharts);
  let resizing;
  addEventListener("resize", () => {
    clearTimeout(resizing);
    resizing = setTimeout(drawCharts, 100);
  });
  connect();
})();
