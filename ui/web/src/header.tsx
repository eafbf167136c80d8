// The top line: the fleet in one sentence, and whether it is of now.

import { celsius, clock, gpuName, grouped, plural, quantity, span, targetName } from './format'
import { asOf, decisions, fleet, link, now, silence, summary } from './live'
import { outcomeText } from './outcome'
import { hashOf } from './route'

export function Header() {
  return (
    <header class="top">
      <a class="name" href="#/">Evenkeel</a>
      <p class="state">{summary.value ? <State /> : link.value === 'connecting' ? 'Asking for the fleet …' : ''}</p>
      <LinkState />
    </header>
  )
}

function State() {
  const s = summary.value
  const f = fleet.value
  if (!s || !f) return null
  if (s.gpus === 0) return <>{s.nodes ? <><b>{plural(s.nodes, 'node')}</b> expected, no GPU heard yet</> : 'No node has been heard yet'}</>
  const last = decisions.value[0]
  const missing = s.coverage.expected - s.coverage.fresh
  const ill = (['lost', 'hung', 'absent', 'unknown'] as const).filter(k => (s.states[k] ?? 0) > 0).map(k => `${grouped(s.states[k] ?? 0)} ${k}`)
  return (
    <>
      <b>{plural(s.gpus, 'GPU')}</b> on <b>{plural(s.nodes, 'node')}</b>
      {s.nodes_up < s.nodes ? <span class="warn"> ({grouped(s.nodes - s.nodes_up)} not heard)</span> : null}
      <Sep />
      <span class={missing ? 'warn' : ''}><b>{grouped(s.coverage.fresh)}</b> of {grouped(s.coverage.expected)} fresh{ill.length ? ` (${ill.join(', ')})` : ''}</span>
      {s.hottest ? <><Sep />least headroom <b>{celsius(s.hottest.headroom_celsius)}</b> on <a href={hashOf({ at: 'gpu', id: s.hottest.uuid })}>{gpuName(f, s.hottest.uuid)}</a></> : null}
      {s.slowed ? <><Sep /><span class="warn"><b>{grouped(s.slowed)}</b> slowed by heat</span></> : null}
      {s.coverage.fresh ? <><Sep /><b>{grouped(s.capped)}</b> capped</> : null}
      {s.power_watts === undefined ? null : <><Sep />{power(s.power_watts)}</>}
      <Sep />
      {last ? <>last decision <a href={hashOf({ at: 'decision', id: last.id })}>{span((now.value - Date.parse(last.time)) / 1000)} ago</a>: {last.act} {targetName(f, last.target)}, {outcomeText(last.outcome)}</> : 'no decision yet'}
      {s.alerts?.firing ? <><Sep /><a href="#/" class="warn"><b>{plural(s.alerts.firing, 'alert')}</b>{s.alerts.critical ? `, ${s.alerts.critical} critical` : ''}</a></> : null}
      {s.breakers_open?.map(b => <span key={b.domain ?? ''} class="brake">breaker open{b.domain ? ` for ${b.domain}` : ''}: {b.reason}</span>)}
      {s.paused ? <span class="brake">{s.paused === 'all' ? 'all acts' : 'disruptive acts'} paused{s.paused_by ? ` by ${s.paused_by}` : ''}</span> : null}
    </>
  )
}

const Sep = () => <span class="sep"> · </span>

const power = (watts: number): string => (watts >= 1e6 ? `${(watts / 1e6).toFixed(2)}\u00a0MW` : watts >= 10000 ? `${(watts / 1000).toFixed(1)}\u00a0kW` : quantity(watts, 'watts'))

function LinkState() {
  const at = asOf.value
  const text = link.value === 'live' ? 'live' : link.value === 'connecting' ? 'connecting' : `stopped for ${span(silence.value ?? 0)}`
  return (
    <div class={`link ${link.value}`} role="status">
      <span class="word">{text}</span>
      <time>{link.value === 'live' ? clock(now.value) : at === null ? '' : `as of ${clock(at)}`} UTC</time>
    </div>
  )
}

/** Stopped says over the map that what it shows is old. */
export function Stopped() {
  const at = asOf.value
  if (link.value !== 'stopped' || at === null) return null
  return (
    <div class="banner" role="alert">
      <b>The stream has stopped.</b> Everything here is as of {clock(at)} UTC, {span(silence.value ?? 0)} ago. Reconnecting; if it lasts, see that the collector runs.
    </div>
  )
}
