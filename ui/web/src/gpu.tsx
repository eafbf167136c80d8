// One GPU: what it is doing, its last minutes, what was decided about it.

import { getJSON } from './api'
import type { GPUDetail } from './api'
import { Chart } from './chart'
import { List } from './decisions'
import { useFetched } from './fetched'
import { AlertsAbout } from './alerts'
import { celsius, clock, fixed, gpuName, quantity, span } from './format'
import { decisions, fleet, link, now, summary } from './live'
import { range, ranges, usePast } from './past'
import { hashOf } from './route'
import { Verdicts, idleText } from './verdict'

export function GPUView({ uuid }: { uuid: string }) {
  const { data: g, error } = useFetched(s => getJSON<GPUDetail>(`/gpus/${encodeURIComponent(uuid)}`, s), [uuid], 2000)
  const long = summary.value?.past === 'store'
  const of = long ? range.value : ranges[0]
  const past = usePast(uuid, of)
  if (error && g?.uuid !== uuid) return <p class="empty warn">{error}</p>
  if (!g || g.uuid !== uuid) return <p class="empty">Asking for {gpuName(fleet.value, uuid)} …</p>
  const about = decisions.value.filter(d => d.target.uuid === uuid)
  const to = now.value
  const first = past.points[0]
  const begin = to - of.seconds * 1000
  const from = Math.max(begin, first && !past.step ? Date.parse(first.time) : begin)
  const events = about.filter(d => !['recommended', 'refused', 'rejected', 'awaiting_approval'].includes(d.outcome)).flatMap(d => [{ at: Date.parse(d.time), label: d.act }, ...(d.outcome === 'undone' && d.ended ? [{ at: Date.parse(d.ended), label: 'undo' }] : [])])
  const chart = { points: past.points.filter(p => Date.parse(p.time) >= from), events, from, to, gap: Math.max(5, 2.5 * past.step) }
  const old = !g.fresh || link.value !== 'live'
  return (
    <article class="gpu" aria-labelledby="gpu-title">
      <div class="head">
        <h2 id="gpu-title"><b>{g.node}/{g.index}</b></h2>
        <span class={`badge ${g.state === 'ok' ? (g.fresh ? 'good' : 'wait') : 'bad'}`}>{g.state === 'ok' && !g.fresh ? 'stale' : g.state}</span>
        {g.capped ? <span class="badge open">capped</span> : null}
      </div>
      <p class="meta">
        <span>{g.model ?? 'model unknown'}{g.arch ? `, ${g.arch}` : ''}</span>
        {g.row ?? g.rack ? <span>{g.row ? `row ${g.row}` : ''}{g.rack ? ` rack ${g.rack}` : ''}</span> : null}
        <span class="mono">{g.uuid}</span>{g.pci ? <span class="mono">{g.pci}</span> : null}{g.driver ? <span>driver {g.driver}</span> : null}
      </p>
      {g.doubt ? <p class="warn">It may not be the GPU that it says, so that no value of it counts as fresh: {g.doubt}.</p> : null}
      {g.hung_call ? <p class="warn">{g.hung_call} has not returned for {span(g.hung_seconds ?? 0)}.</p> : null}
      {old ? <p class="warn">{g.sampled_at ? `Values are as of ${clock(Date.parse(g.sampled_at))} UTC, ${span((now.value - Date.parse(g.sampled_at)) / 1000)} ago.` : 'No value of this GPU is in memory.'}</p> : null}
      <Values g={g} old={old} />
      <Verdicts g={g} old={old} />
      <AlertsAbout node={g.node} uuid={g.uuid} />
      {long ? <Ranges /> : null}
      {chart.points.length > 1 ? (
        <div class="charts">
          <Chart {...chart} title="Thermal headroom" unit="°C" least={8} height={130} lines={[{ field: 'headroom_celsius', label: 'headroom' }]} levels={[{ at: 0, label: 'slowdown', tone: 'mark' }]} />
          <Chart {...chart} title="Temperature" unit="°C" least={10} height={130} lines={[{ field: 'temperature_core_celsius', label: 'core' }, { field: 'temperature_memory_celsius', label: 'memory' }]} />
          <Chart {...chart} title="Power" unit="W" least={100} height={130} lines={[{ field: 'power_watts', label: 'power' }, { field: 'power_limit_watts', label: 'limit', stepped: true }]} />
        </div>
      ) : past.loaded ? <p class="empty">{past.error ?? (of.ask ? `Too little is kept yet for a chart of ${of.label}; a shorter range shows what there is.` : 'No past is kept of this GPU yet.')}</p> : null}
      {past.note ? <p class="dim">{past.note}</p> : null}
      <section>
        <h3>Workloads</h3>
        {g.workloads.length ? g.workloads.map(w => <p key={w.ref}><a href={hashOf({ at: 'workload', id: w.ref })}>{w.ref}</a>{w.owner ? ` of ${w.owner}` : ''}</p>) : <p class="dim">None known{g.idle ? `; ${idleText(g)}` : ''}.</p>}
        <Members g={g} />
      </section>
      <section>
        <h3>Decisions about it</h3>
        {about.length ? <List list={about} /> : <p class="dim">None among those listed.</p>}
      </section>
      <Readings g={g} />
    </article>
  )
}

/** Ranges chooses how far back the charts go. */
function Ranges() {
  return (
    <fieldset class="choice ranges">
      <legend class="unseen">How far back</legend>
      {ranges.map(r => <label key={r.label}><input type="radio" name="range" checked={range.value === r} onChange={() => { range.value = r }} /><span>{r.label}</span></label>)}
    </fieldset>
  )
}

/** Members are who holds the GPU, as the node sees it. */
function Members({ g }: { g: GPUDetail }) {
  if (!g.members.length) return null
  return <p class="dim">Held by {g.members.map((m, i) => <>{i ? ', ' : ''}<span key={m.id + String(m.gi)}>{m.name ? `${m.name}, ` : ''}{m.kind} <span class="mono">{m.id}</span>{m.gi === undefined ? '' : ` on part ${m.gi}`}{m.workload ? '' : ', of no known workload'}</span></>)}.</p>
}

/** throttled says what the reasons together mean. */
const throttled = (g: GPUDetail): string => (g.throttle.some(t => /thermal|slowdown/.test(t)) ? 'heat holds its clocks down' : g.throttle.includes('power_brake') ? 'the supply holds it down' : g.throttle.includes('sw_power') ? 'at its power limit' : '')

function Values({ g, old }: { g: GPUDetail; old: boolean }) {
  const slope = g.slope_celsius_per_second
  return (
    <dl class={old ? 'values old' : 'values'}>
      <div><dt>Headroom</dt><dd><b>{celsius(g.headroom_celsius)}</b></dd><dd class="dim">{slope === undefined ? 'slope unknown' : Math.abs(slope) < 0.005 ? 'steady' : `${slope > 0 ? 'cooling' : 'heating'} ${fixed(Math.abs(slope), 2)} °C/s`}{g.seconds_to_slowdown !== undefined && g.seconds_to_slowdown < 600 ? <span class="warn">, slowdown in {span(g.seconds_to_slowdown)}</span> : ''}</dd></div>
      <div><dt>Core</dt><dd><b>{celsius(g.temperature_core_celsius)}</b></dd><dd class="dim">memory {celsius(g.temperature_memory_celsius)}{g.thermal_resistance_celsius_per_watt === undefined ? '' : `, ${fixed(g.thermal_resistance_celsius_per_watt, 3)} °C per W`}</dd></div>
      <div><dt>Power</dt><dd><b>{quantity(g.power_watts, 'watts')}</b></dd><dd class="dim">limit {quantity(g.power_limit_watts, 'watts')}, default {quantity(g.power_limit_default_watts, 'watts')}</dd></div>
      <div><dt>Utilisation</dt><dd><b>{quantity(g.utilization_ratio, 'ratio')}</b></dd><dd class="dim">SM clock {quantity(g.sm_clock_hertz, 'hertz')}</dd></div>
      <div><dt>Memory</dt><dd><b>{quantity(g.memory_used_bytes, 'bytes')}</b></dd><dd class="dim">of {quantity(g.memory_total_bytes, 'bytes')}</dd></div>
      <div><dt>Throttle</dt><dd><b>{g.throttle.length ? g.throttle.join(', ') : 'none'}</b></dd><dd class="dim">{throttled(g)}</dd></div>
    </dl>
  )
}

function Readings({ g }: { g: GPUDetail }) {
  return (
    <details>
      <summary>All {g.readings.length} values</summary>
      <table>
        <thead><tr><th>Metric</th><th class="n">Value</th><th class="n">Age</th><th>Quality</th></tr></thead>
        <tbody>
          {g.readings.map(r => {
            const labels = Object.entries(r.labels ?? {}).map(([k, v]) => `${k}=${v}`).join(',')
            return <tr key={r.metric + labels}><td class="mono">{r.metric}{labels ? `{${labels}}` : ''}</td><td class="n">{quantity(r.value, r.unit)}</td><td class="n">{r.age_seconds === undefined ? '–' : `${fixed(r.age_seconds, 1)} s`}</td><td class={r.quality === 'ok' ? '' : 'warn'}>{r.quality.replaceAll('_', ' ')}</td></tr>
          })}
        </tbody>
      </table>
    </details>
  )
}
