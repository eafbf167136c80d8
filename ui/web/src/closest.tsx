// The table under the heat map: the hottest GPUs by the chosen signal. It is
// also what a screen reader gets of the map.

import { celsius, gpuName, quantity, span } from './format'
import { closest } from './legend'
import { fleet } from './live'
import { hashOf } from './route'
import { scale } from './scale'

const titles = { headroom: 'Closest to slowdown', temperature: 'Warmest', power: 'Closest to their limit', utilisation: 'Busiest' }

export function Closest() {
  const f = fleet.value
  if (!f) return null
  const list = closest(8)
  if (list.length === 0) return null
  return (
    <table class="closest">
      <caption>{titles[scale.value.name]}: {list.length} of {f.gpus.length}</caption>
      <thead>
        <tr><th>GPU</th><th class="n">Headroom</th><th class="n">Slowdown in</th><th class="n">Core</th><th class="n">Memory</th><th class="n">Power</th><th class="n">Limit</th><th class="n">Busy</th><th>Throttle</th><th>Workload</th></tr>
      </thead>
      <tbody>
        {list.map(({ gpu }) => {
          const g = f.gpus[gpu]
          const r = f.rows[gpu]
          if (!g || !r) return null
          const w = f.workloads[gpu]?.[0]
          return (
            <tr key={g.uuid}>
              <th scope="row"><a href={hashOf({ at: 'gpu', id: g.uuid })}>{gpuName(f, g.uuid)}</a></th>
              <td class="n"><b>{celsius(r.headroom)}</b></td>
              <td class="n">{r.reaches === null ? '–' : span(r.reaches)}</td>
              <td class="n">{celsius(r.core)}</td>
              <td class="n">{celsius(r.memory)}</td>
              <td class="n">{quantity(r.power, 'watts')}</td>
              <td class="n">{quantity(r.limit, 'watts')}{r.capped ? <span title="below the default" class="tag">capped</span> : null}</td>
              <td class="n">{quantity(r.busy, 'ratio')}</td>
              <td>{r.throttle.join(', ') || '–'}</td>
              <td class="cut">{w ? <a href={hashOf({ at: 'workload', id: w.ref })} title={w.owner ? `owner ${w.owner}` : ''}>{w.ref}</a> : '–'}</td>
            </tr>
          )
        })}
      </tbody>
    </table>
  )
}
