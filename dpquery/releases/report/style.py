"""The style sheet of the report: light and dark, screen and print."""

STYLE = """
:root { color-scheme: light dark; --paper: #fff; --box: #f5f6f8; --ink: #1c2430; --soft: #596273;
  --rule: #d9dde4; --accent: #2f5fb3; --warn: #b4540a; --good: #17693f; --weak: #a3262a;
  --c0: #2f5fb3; --c1: #b8520f; --c2: #2b7a4b; --c3: #7a3fa0; }
@media (prefers-color-scheme: dark) { :root { --paper: #14181f; --box: #1d232d; --ink: #e6e9ef;
  --soft: #a2acbb; --rule: #343c49; --accent: #7aa7f0; --warn: #f0a35e; --good: #6fcf97;
  --weak: #f28b82; --c0: #7aa7f0; --c1: #f0a35e; --c2: #6fcf97; --c3: #c79bec; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Liberation Sans", sans-serif; }
main { max-width: 1080px; margin: 0 auto; padding: 32px 20px 64px; }
h1 { font-size: 30px; line-height: 1.2; margin: 0 0 8px; overflow-wrap: anywhere; }
h2 { font-size: 20px; margin: 32px 0 14px; padding-top: 16px; border-top: 1px solid var(--rule); }
.kicker { color: var(--soft); margin: 0 0 4px; }
small { display: block; color: var(--soft); font-size: 13px; font-weight: 400; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(170px, 1fr)); gap: 12px;
  margin: 22px 0 0; }
.tile { background: var(--box); border-radius: 10px; padding: 12px 16px; }
.tile dt { color: var(--soft); font-size: 13px; }
.tile dd { margin: 0; font-size: 20px; }
.tile b { font-size: 26px; font-weight: 650; overflow-wrap: anywhere; }
.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(440px, 100%), 1fr));
  gap: 28px 24px; align-items: start; }
.flow { columns: 440px 2; column-gap: 24px; }
.flow figure { break-inside: avoid; padding-bottom: 26px; }
figure { margin: 0; min-width: 0; }
figcaption { font-weight: 600; margin-bottom: 8px; overflow-wrap: anywhere; }
svg { display: block; width: 100%; max-width: 600px; height: auto; }
svg text { font-size: 13px; fill: var(--ink); }
svg .tick { fill: var(--soft); font-size: 12px; }
svg .middle { text-anchor: middle; } svg .end { text-anchor: end; }
svg .value { font-variant-numeric: tabular-nums; }
svg line { stroke: var(--rule); } svg .zero { stroke: var(--soft); }
svg .mark { stroke: var(--warn); stroke-dasharray: 4 3; }
svg .bar { fill: var(--accent); }
svg .whisker { stroke: var(--accent); stroke-width: 2; } svg .dot { fill: var(--accent); }
svg .whisker.flagged { stroke: var(--warn); }
svg .dot.flagged { fill: var(--paper); stroke: var(--warn); stroke-width: 2; }
svg .line { fill: none; stroke-width: 2; stroke-linejoin: round; }
svg .band { stroke: none; opacity: .22; } svg .hover { fill: transparent; }
svg .now { fill: var(--warn); }
.line.s0 { stroke: var(--c0); } .line.s1 { stroke: var(--c1); }
.line.s2 { stroke: var(--c2); } .line.s3 { stroke: var(--c3); }
.band.s0, .key.s0 { fill: var(--c0); } .band.s1, .key.s1 { fill: var(--c1); }
.band.s2, .key.s2 { fill: var(--c2); } .band.s3, .key.s3 { fill: var(--c3); }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 14px; }
th, td { padding: 7px 10px; text-align: right; white-space: nowrap;
  border-bottom: 1px solid var(--rule);
  vertical-align: top; font-variant-numeric: tabular-nums; }
thead th { color: var(--soft); font-weight: 600; }
th:first-child, .verdict, thead th:last-child { text-align: left; }
th:first-child, .verdict { white-space: normal; }
.verdict { min-width: 230px; }
.pill { display: inline-block; min-width: 46px; padding: 0 8px; border-radius: 9px;
  border: 1px solid currentColor; text-align: center; font-size: 12px; }
.good { color: var(--good); } .fair { color: var(--warn); } .weak { color: var(--weak); }
.unknown { color: var(--soft); }
.words { display: grid; grid-template-columns: minmax(110px, 170px) 1fr; gap: 8px 20px; margin: 0; }
.words dt { font-weight: 600; } .words dd { margin: 0; max-width: 70ch; overflow-wrap: anywhere; }
@media print { main { max-width: none; } figure, tr { break-inside: avoid; } }
"""
