// One decision: why, why this, why not the others, did it help.

import { root, getJSON } from './api'
import type { Alternative, Decision, DecisionLine, Effect, Refusal, StepRecord, Violation } from './api'
import { Chart } from './chart'
import type { Event, Level } from './chart'
import { useFetched } from './fetched'
import { clock, duration, fixed, moment, plural, quantity, signalName, span, targetName } from './format'
import { decisions, fleet, now } from './live'
import { Badge } from './outcome'
import { usePast } from './past'
import { hashOf } from './route'

export function DecisionView({ id }: { id: string }) {
  const line = decisions.value.find(d => d.id === id)
  // A changed line means a changed record.
  const { data: d, error } = useFetched(s => getJSON<Decision>(`/decisions/${encodeURIComponent(id)}`, s), [id, line])
  if (error && d?.id !== id) return <p class="empty warn">{error}</p>
  if (!d || d.id !== id) return <p class="empty">Asking for {id} …</p>
  return (
    <article class="decision" aria-labelledby="decision-title">
      <Title d={d} />
      <p class="lead">{d.why}</p>
      <Result d={d} />
      <BeforeAfter d={d} />
      <Why d={d} />
      <WhyThis d={d} />
      <WhyNot d={d} />
      <DidItHelp d={d} />
    </article>
  )
}

function Title({ d }: { d: Decision }) {
  const list: DecisionLine[] = decisions.value
  const i = list.findIndex(x => x.id === d.id)
  const newer = list[i - 1]
  const older = i < 0 ? undefined : list[i + 1]
  const name = targetName(fleet.value, d.target)
  return (
    <>
      <div class="head">
        <h2 id="decision-title"><b>{d.act}</b> {d.target.uuid ? <a href={hashOf({ at: 'gpu', id: d.target.uuid })}>{name}</a> : name}</h2>
        <Badge outcome={d.outcome} />
        <nav class="right" aria-label="Other decisions">
          {newer ? <a href={hashOf({ at: 'decision', id: newer.id })} title="the next decision">newer</a> : <span class="dim">newer</span>}
          {older ? <a href={hashOf({ at: 'decision', id: older.id })} title="the decision before">older</a> : <span class="dim">older</span>}
        </nav>
      </div>
      <p class="meta">
        <span class="mono">{d.id}</span><span><time dateTime={d.time}>{moment(Date.parse(d.time), now.value)}</time> UTC, {span((now.value - Date.parse(d.time)) / 1000)} ago</span>
        <span>policy {d.policy}{d.policy_revision ? ` ${d.policy_revision}` : ''}, {d.mode}s, {d.class}</span>
        <a href={`${root}/decisions/${encodeURIComponent(d.id)}/explain`}>as text</a><a href={`${root}/decisions/${encodeURIComponent(d.id)}`}>as JSON</a>
      </p>
    </>
  )
}

/** Result is the end of the story, told first. */
function Result({ d }: { d: Decision }) {
  const o = d.observed
  if (o) return <p>Then {signalName(o.signal)} went from {quantity(o.before, o.unit)} to <b>{quantity(o.after, o.unit)}</b>{d.predicted ? `, predicted ${quantity(d.predicted.after, d.predicted.unit)}` : ''}{d.ending ? `; ${d.ending}` : ''}.</p>
  const due = d.verify_by && !d.ended ? (Date.parse(d.verify_by) - now.value) / 1000 : null
  if (due === null) return d.ending ? <p>Then {d.ending}.</p> : null
  return <p class="dim">{due > 0 ? `Whether it helps is looked at within ${span(due)}.` : `Whether it helped was to be looked at ${span(-due)} ago.`}</p>
}

/** When the act took hold and when it was taken back, by receipts where there are any. */
export function eventsOf(d: Decision): { act: number; undo: number | null } {
  const ended = (s: StepRecord): number | null => (s.receipt?.ended ? Date.parse(s.receipt.ended) : null)
  const undoStep = d.steps?.findLast(s => s.step.kind === 'undo' && s.receipt?.result === 'done')
  const actStep = d.steps?.find(s => s.step.kind !== 'undo' && s.step.kind !== 'renew')
  return {
    act: (actStep && ended(actStep)) ?? Date.parse(d.time),
    undo: (undoStep && ended(undoStep)) ?? (d.outcome === 'undone' && d.ended ? Date.parse(d.ended) : null),
  }
}

function BeforeAfter({ d }: { d: Decision }) {
  const past = usePast(d.target.uuid)
  if (!d.target.uuid) return null
  const { act, undo } = eventsOf(d)
  const first = past.points[0]
  const from = Math.min(act - 10_000, Math.max(act - 120_000, first ? Date.parse(first.time) - 5000 : 0))
  const to = Math.max(act + 60_000, Math.min(now.value, (undo ?? (d.ended ? Date.parse(d.ended) : now.value)) + 120_000, act + 3_600_000))
  const points = past.points.filter(p => Date.parse(p.time) >= from - 5000 && Date.parse(p.time) <= to)
  if (!points.length) {
    if (!past.loaded) return <p class="empty">Asking for the GPU's past …</p>
    return <p class="empty">{past.error ?? (first ? `The GPU's past is kept from ${moment(Date.parse(first.time), now.value)} UTC on; this decision is older. What was read then is below.` : 'No past is kept of this GPU.')}</p>
  }
  const acted = d.steps?.some(s => s.receipt?.result === 'done') ?? false
  const events: Event[] = [{ at: act, label: acted ? d.act : 'decided' }, ...(undo ? [{ at: undo, label: 'undo' }] : [])]
  const v = d.violations?.find(x => x.target.uuid === d.target.uuid) ?? d.violations?.[0]
  const levels = (signal: string): Level[] => (v?.signal.includes(signal) ? [{ at: v.mark, label: `mark ${quantity(v.mark, v.unit)}`, tone: 'mark' }, { at: v.aim, label: `aim ${quantity(v.aim, v.unit)}`, tone: 'aim' }] : [])
  const span = { points, events, from, to }
  return (
    <div class="charts">
      {!v?.signal.includes('temperature') && (
        <Chart {...span} title="Thermal headroom" unit="°C" least={8} levels={levels('headroom')} lines={[{ field: 'headroom_celsius', label: 'headroom' }]} />
      )}
      <Chart {...span} title="Temperature" unit="°C" least={8} height={130} levels={levels('temperature')} lines={[{ field: 'temperature_core_celsius', label: 'core' }, { field: 'temperature_memory_celsius', label: 'memory' }]} />
      <Chart {...span} title="Power" unit="W" least={100} height={130} levels={levels('power')} lines={[{ field: 'power_watts', label: 'power' }, { field: 'power_limit_watts', label: 'limit', stepped: true }]} />
    </div>
  )
}

function Why({ d }: { d: Decision }) {
  const several = (d.violations?.length ?? 0) > 1
  return (
    <section>
      <h3>Why</h3>
      {d.violations?.map((v, i) => <ViolationView key={i} v={v} named={several} />)}
      {d.candidates?.map(c => (
        <p key={c.workload}>Caused by <a href={hashOf({ at: 'workload', id: c.workload })}>{c.workload}</a>{c.owner ? ` of ${c.owner}` : ''}{c.name ? `, ${c.name}` : ''}: priority {c.priority}, share {quantity(c.share, 'ratio')}{c.note ? `; ${c.note}` : ''}.</p>
      ))}
      <p class="dim">Seen at {clock(Date.parse(d.view_time))} UTC with {d.coverage.fresh} of {d.coverage.expected} GPUs fresh.{d.first_seen && d.last_seen && d.first_seen !== d.last_seen ? ` First seen ${moment(Date.parse(d.first_seen), now.value)}, last ${moment(Date.parse(d.last_seen), now.value)}.` : ''}</p>
    </section>
  )
}

function ViolationView({ v, named }: { v: Violation; named: boolean }) {
  return (
    <>
      <p>
        {named ? <><b>{targetName(fleet.value, v.target)}</b>: </> : null}
        {signalName(v.signal)} <b>{quantity(v.value, v.unit)}</b>, mark {quantity(v.mark, v.unit)}, aim {quantity(v.aim, v.unit)}. Beyond the mark in {v.seen} of {plural(v.of, 'sample')}, {v.needed} needed{v.agrees ? <>; {v.agrees} agrees</> : null}.
        {v.seconds_to_limit ? ` Moving ${fixed(v.slope_per_second ?? 0, 2)} ${v.unit === 'celsius' ? '°C' : v.unit ?? ''}/s, limit in about ${span(v.seconds_to_limit)}.` : ''}
        {v.where ? <span class="dim"> {v.where}.</span> : null}
      </p>
      {v.evidence?.length ? (
        <table>
          <thead><tr><th>Evidence</th><th class="n">Value</th><th class="n">Age</th><th>Quality</th></tr></thead>
          <tbody>{v.evidence.map(e => <tr key={e.signal}><td class="mono">{e.signal}{e.note ? <span class="dim"> {e.note}</span> : null}</td><td class="n">{quantity(e.value, e.unit)}</td><td class="n">{e.age_ms} ms</td><td class={e.quality === 'ok' ? '' : 'warn'}>{e.quality}</td></tr>)}</tbody>
        </table>
      ) : null}
    </>
  )
}

function WhyThis({ d }: { d: Decision }) {
  if (!d.chosen) return null
  const chosen = d.alternatives?.find(a => a.chosen)
  return (
    <section>
      <h3>Why this</h3>
      <p><b>{d.chosen.summary}</b>{chosen ? <>: {net(chosen)}</> : null}.{d.predicted ? <> Predicted: {effect(d.predicted)}{d.predicted.note ? <span class="dim"> ({d.predicted.note})</span> : null}.</> : null}</p>
      {d.chosen.lease ? <p class="dim">Held under a lease of {duration(d.chosen.lease)}, renewed while needed; its owner undoes it when the lease ends.</p> : null}
      {(d.chosen.gpus?.length ?? 0) > 1 ? <p class="dim">Holds all {d.chosen.gpus!.length} GPUs of the workload until it is known what it did.</p> : null}
      {d.approval ? <p>{d.approval.verdict} by {d.approval.by} at {moment(Date.parse(d.approval.at), now.value)} UTC.</p> : null}
      {d.steps?.length ? (
        <table>
          <thead><tr><th>Step</th><th>On</th><th>Result</th></tr></thead>
          <tbody>{d.steps.map(s => <tr key={s.step.id}><td>{s.step.kind.replaceAll('_', ' ')}<br /><span class="dim mono">{s.step.id}</span></td><td>{targetName(fleet.value, s.step.target)}<br /><span class="dim">{s.step.backend}</span></td><td>{told(s)}{receipt(s)}</td></tr>)}</tbody>
        </table>
      ) : null}
    </section>
  )
}

const effect = (e: Effect): string => `${signalName(e.signal)} from ${quantity(e.before, e.unit)} to ${quantity(e.after, e.unit)}${e.within ? ` within ${duration(e.within)}` : ''}`

const net = (a: Alternative): string => `net ${fixed(a.net_gpu_seconds, 0)} GPU-seconds (gain ${fixed(a.gain_gpu_seconds, 0)}, cost ${fixed(a.cost_gpu_seconds, 0)}, risk ${fixed(a.risk_gpu_seconds, 0)})`

/** told is what a process and its owner are told before it is ended. */
function told(s: StepRecord) {
  const p = s.step.params
  if (s.step.kind !== 'preempt') return null
  return <div>SIG{p.signal}, {p.grace ? duration(p.grace) : 'no time'} to end by itself, then KILL.{p.message ? <> Its owner is told: <span class="dim">{p.message}</span>.</> : null}</div>
}

function receipt(s: StepRecord) {
  const r = s.receipt
  if (!r) return <span class="dim">no receipt yet</span>
  if (r.result !== 'done') return <span class="warn">{r.result}{r.why ? ` (${r.why})` : ''}{r.detail ? `: ${r.detail}` : ''}{r.undone ? `; undone: ${r.undone}` : ''}</span>
  if (s.step.kind === 'preempt') return <>done {r.ended ? clock(Date.parse(r.ended)) : ''}: {r.detail}</>
  return (
    <>
      done {r.ended ? clock(Date.parse(r.ended)) : ''}
      {Object.entries(r.after ?? {}).map(([k, v]) => {
        const unit = k.slice(k.lastIndexOf('_') + 1)
        const before = r.before?.[k]
        return <div key={k}>{signalName(k)} {before === undefined ? '' : `${quantity(before, unit)} → `}<b>{quantity(v, unit)}</b></div>
      })}
      {r.lease_until ? <div class="dim">lease until {clock(Date.parse(r.lease_until))}</div> : null}
    </>
  )
}

function WhyNot({ d }: { d: Decision }) {
  const others = d.alternatives?.filter(a => !a.chosen) ?? []
  if (others.length + (d.refusals?.length ?? 0) === 0) return null
  const shown = (d.refusals?.length ?? 0) + (d.alternatives ?? []).reduce((n, a) => n + (a.refusals?.length ?? 0), 0)
  const counted = Object.entries(d.refusal_counts ?? {})
  const total = counted.reduce((n, [, c]) => n + c, 0)
  return (
    <section>
      <h3>Why not the others</h3>
      <dl class="others">
        {others.map((a, i) => (
          <div key={i}>
            <dt>{a.act}</dt>
            <dd>{a.summary}{a.net_gpu_seconds ? <span class="dim">: {net(a)}</span> : null}<Refusals list={a.refusals ?? []} /></dd>
          </div>
        ))}
        {d.refusals?.map((r, i) => <div key={`r${i}`}><dt>{r.act ?? ''}</dt><dd><Refusals list={[r]} /></dd></div>)}
      </dl>
      {total > shown ? <p class="dim">{total} refusals in all: {counted.map(([k, n]) => `${n} ${k.replaceAll('_', ' ')}`).join(', ')}.</p> : null}
    </section>
  )
}

export function Refusals({ list }: { list: Refusal[] }) {
  return (
    <ul class="refusals">
      {list.map((r, i) => <li key={i}><span class="tag">{r.reason.replaceAll('_', ' ')}</span> {r.text}{r.until ? ` (until ${moment(Date.parse(r.until), now.value)})` : ''}</li>)}
    </ul>
  )
}

function DidItHelp({ d }: { d: Decision }) {
  const o = d.observed
  return (
    <section>
      <h3>Did it help</h3>
      {o ? (
        <p>{signalName(o.signal)} went from {quantity(o.before, o.unit)} to <b>{quantity(o.after, o.unit)}</b>{o.at ? ` at ${clock(Date.parse(o.at))}` : ''}{d.predicted ? `; predicted ${quantity(d.predicted.after, d.predicted.unit)}` : ''}.{o.note ? ` ${o.note}.` : ''}</p>
      ) : d.verify_by && !d.ended ? (
        <p>Not known yet: {Date.parse(d.verify_by) > now.value ? `looked at by ${clock(Date.parse(d.verify_by))}, in ${span((Date.parse(d.verify_by) - now.value) / 1000)}.` : `it was to be looked at by ${clock(Date.parse(d.verify_by))}.`}</p>
      ) : !d.chosen || d.outcome === 'recommended' || d.outcome === 'awaiting_approval' ? <p>Nothing was done.</p> : <p>Not observed.</p>}
      {d.ending && d.ended ? <p>Ended {moment(Date.parse(d.ended), now.value)}: {d.ending}.</p> : null}
    </section>
  )
}
