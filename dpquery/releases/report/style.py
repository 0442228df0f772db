"""The style sheet of the report: light and dark, wide and narrow, screen and print."""

STYLE = """
:root { color-scheme: light dark; --paper: #fff; --box: #f5f6f8; --ink: #1c2430; --soft: #566070;
  --rule: #d5dae2; --accent: #2f5fb3; --warn: #a54a06; --good: #17693f; --weak: #a3262a;
  --c0: #2f5fb3; --c1: #b8520f; --c2: #2b7a4b;
  --h0: #eef3fb; --h1: #cfdff5; --h2: #a3c2ea; --h3: #6f9dda; --h4: #3d73bd; --h5: #1b4583;
  --h6: #f2c9a8; --spot: #b8520f; }
@media (prefers-color-scheme: dark) { :root { --paper: #14181f; --box: #1d232d; --ink: #e6e9ef;
  --soft: #a8b2c1; --rule: #3a4351; --accent: #6f9fe8; --warn: #f0a35e; --good: #6fcf97;
  --weak: #f28b82; --c0: #7aa7f0; --c1: #f0a35e; --c2: #6fcf97;
  --h0: #1f2836; --h1: #26405f; --h2: #305a8c; --h3: #4279b8; --h4: #6fa0dc; --h5: #b5d2f6;
  --h6: #6b4423; --spot: #f0a35e; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Liberation Sans", sans-serif; }
main { max-width: 1160px; margin: 0 auto; padding: 28px 20px 64px; }
a { color: var(--accent); }
a:focus-visible, summary:focus-visible, [tabindex]:focus-visible { outline: 3px solid var(--accent);
  outline-offset: 2px; }
.skip { position: absolute; left: -9999px; }
.skip:focus { left: 12px; top: 8px; background: var(--paper); padding: 6px 10px; }
h1 { font-size: 30px; line-height: 1.2; margin: 0 0 8px; overflow-wrap: anywhere; }
h2 { font-size: 20px; margin: 32px 0 14px; padding-top: 16px; border-top: 1px solid var(--rule); }
h3 { font-size: 18px; margin: 0 0 2px; overflow-wrap: anywhere; }
h4 { font-size: 14px; margin: 12px 0 4px; overflow-wrap: anywhere; }
p { margin: 0 0 8px; overflow-wrap: anywhere; }
.kicker { color: var(--soft); margin: 0 0 4px; }
small { display: block; color: var(--soft); font-size: 13px; font-weight: 400; }
summary small { display: inline; margin-left: 6px; }
code { font-size: 13px; overflow-wrap: anywhere; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 12px;
  margin: 22px 0 0; }
.tile { background: var(--box); border-radius: 10px; padding: 12px 16px; min-width: 0; }
.tile dt { color: var(--soft); font-size: 13px; }
.tile dd { margin: 0; font-size: 20px; }
.tile b { font-size: 26px; font-weight: 650; overflow-wrap: anywhere; }
.pair figure { margin: 0 0 26px; max-width: 700px; }
article { padding: 0 0 30px; margin: 0 0 26px; border-bottom: 1px solid var(--rule); }
.item { display: grid; grid-template-columns: minmax(0, 700px) minmax(0, 1fr); gap: 12px 32px; }
.reading { font-size: 14px; }
.note { font-size: 13px; color: var(--soft); max-width: 700px; }
figure { margin: 0; min-width: 0; }
figcaption { font-weight: 600; margin-bottom: 8px; overflow-wrap: anywhere; }
details { margin: 8px 0; min-width: 0; }
summary { cursor: pointer; font-weight: 600; padding: 3px 0; overflow-wrap: anywhere; }
.one b { font-size: 34px; font-weight: 650; margin-right: 12px; }
.legend { list-style: none; display: flex; flex-wrap: wrap; gap: 2px 14px; margin: 0 0 6px;
  padding: 0; font-size: 13px; }
.legend li { display: flex; align-items: center; gap: 6px; overflow-wrap: anywhere; }
.swatch { flex: none; width: 24px; height: 14px; }
.panels { display: grid; grid-template-columns: repeat(auto-fill, minmax(158px, 1fr)); gap: 12px; }
.panel { min-width: 0; max-width: 210px; }
.panel p { font-size: 13px; margin: 0; white-space: nowrap; overflow: hidden;
  text-overflow: ellipsis; }
svg { display: block; width: 100%; height: auto; }
svg.wide { max-width: 700px; } svg.narrow { display: none; max-width: 480px; }
svg.panel { max-width: none; }
svg text { font-size: 12px; fill: var(--ink); }
svg .tick { fill: var(--soft); }
svg text.head { fill: var(--ink); font-weight: 600; }
svg .end { text-anchor: end; }
svg .value { font-variant-numeric: tabular-nums; }
svg line { stroke: var(--rule); } svg .zero { stroke: var(--soft); }
svg .mark { stroke: var(--warn); stroke-width: 1.5; stroke-dasharray: 4 3; }
svg .bar { fill: var(--accent); opacity: .55; }
svg .bar.flagged { fill: var(--paper); stroke: var(--warn); opacity: 1; }
svg .whisker { fill: none; stroke: var(--ink); stroke-width: 1.5; }
svg .dot { fill: var(--accent); } svg .now { fill: var(--warn); }
svg .line { fill: none; stroke-width: 1.6; stroke-linejoin: round; }
svg .band { stroke: none; opacity: .25; } svg .hover { fill: transparent; }
.line.s0 { stroke: var(--c0); } .line.s1 { stroke: var(--c1); stroke-dasharray: 7 2; }
.line.s2 { stroke: var(--c2); stroke-dasharray: 2 2; }
.band.s0, .key.s0 { fill: var(--c0); } .band.s1, .key.s1 { fill: var(--c1); }
.band.s2, .key.s2 { fill: var(--c2); }
.h0 { stroke: var(--h0); } .h1 { stroke: var(--h1); } .h2 { stroke: var(--h2); }
.h3 { stroke: var(--h3); } .h4 { stroke: var(--h4); } .h5 { stroke: var(--h5); }
.h6 { stroke: var(--h6); } .h7, .h8 { stroke: var(--box); }
svg path[class^="h"] { fill: none; shape-rendering: crispEdges; }
.stroke { stroke: var(--soft); stroke-width: .8; fill: none; }
.noisy { stroke: var(--spot); stroke-width: 3.4; stroke-linecap: round; fill: none; }
.noisy.small { stroke-width: 1.8; }
.scroll { overflow-x: auto; margin: 8px 0; }
table { border-collapse: collapse; font-size: 14px; }
section > .scroll > table { width: 100%; }
caption { text-align: left; font-weight: 600; font-size: 14px; padding: 4px 0; }
th, td { padding: 5px 10px; text-align: right; white-space: nowrap;
  border-bottom: 1px solid var(--rule); vertical-align: top; font-variant-numeric: tabular-nums; }
article th { text-align: left; } article tbody th { font-weight: 400; }
article th + td, article td + td { text-align: right; }
thead th { color: var(--soft); font-weight: 600; }
th:first-child, .verdict, thead th:last-child { text-align: left; }
section > .scroll th:first-child, .verdict { white-space: normal; }
section > .scroll th:first-child { min-width: 150px; }
.verdict { min-width: 230px; }
.pill { display: inline-block; min-width: 46px; padding: 0 8px; border-radius: 9px;
  border: 1px solid currentColor; text-align: center; font-size: 12px; }
.good { color: var(--good); } .fair { color: var(--warn); } .weak { color: var(--weak); }
.unknown { color: var(--soft); }
.words { display: grid; grid-template-columns: minmax(100px, 170px) minmax(0, 1fr); gap: 8px 20px;
  margin: 0; }
.words dt { font-weight: 600; overflow-wrap: anywhere; }
.words dd { margin: 0; max-width: 70ch; overflow-wrap: anywhere; }
@media (max-width: 1139px) { .item { grid-template-columns: minmax(0, 1fr); }
  .reading { max-width: 700px; } }
@media screen and (max-width: 759px) { main { padding: 20px 14px 48px; }
  th, td { padding: 4px 6px; font-size: 13px; } svg.wide { display: none; }
  svg.narrow { display: block; } }
@media print { main { max-width: none; padding: 0; } article { border: 0; }
  figure svg, tr, .panel, .tile { break-inside: avoid; } h3, h4, summary { break-after: avoid; }
  .scroll { overflow: visible; } th, td { padding: 3px 6px; font-size: 12px; }
  article th, article td { white-space: normal; } article table { break-inside: avoid; }
  .skip, .more { display: none; }
  details::details-content { content-visibility: visible; display: block; } }
"""
