// What only the leader of the rebalancer can say.

import { getText, refPath } from './api'
import { useFetched } from './fetched'
import { gpuName } from './format'
import { decisions, fleet, layoutVersion, version } from './live'
import { List } from './decisions'
import { hashOf } from './route'

function Answer({ path }: { path: string }) {
  const { data, error } = useFetched(s => getText(path, s), [path], 5000)
  return (
    <>
      {error ? <p class="warn">{error}</p> : null}
      {data === null ? (error ? null : <p class="empty">Asking the leader …</p>) : <pre><Linked text={data} /></pre>}
    </>
  )
}

/** Linked puts names and links where the text has the uuid of a known GPU or a decision's id. */
export function Linked({ text }: { text: string }) {
  const f = fleet.value
  const parts = text.split(/(GPU-[0-9a-f]{8}(?:-[0-9a-f]+){4}(?: on [^\s:,()]+)?|\bd-\d{6,}\b)/)
  return (
    <>
      {parts.map((p, i) => {
        if (i % 2 === 0) return p
        const uuid = p.split(' ')[0] ?? ''
        if (p.startsWith('d-')) return <a key={i} href={hashOf({ at: 'decision', id: p })}>{p}</a>
        return f?.places.has(uuid) ? <a key={i} href={hashOf({ at: 'gpu', id: uuid })} title={uuid}>{gpuName(f, uuid)}</a> : p
      })}
    </>
  )
}

export function Nothing() {
  return (
    <article aria-labelledby="nothing-title">
      <div class="head"><h2 id="nothing-title">Why nothing happens now</h2></div>
      <Answer path="/explain/nothing" />
    </article>
  )
}

export function WorkloadView({ id }: { id: string }) {
  void version.value
  void layoutVersion.value
  const f = fleet.value
  const held = f ? f.gpus.filter((_, i) => f.workloads[i]?.some(w => w.ref === id)) : []
  const owner = f?.workloads.flatMap(l => l ?? []).find(w => w.ref === id)?.owner
  const about = decisions.value.filter(d => d.target.workload === id || held.some(g => g.uuid === d.target.uuid))
  return (
    <article aria-labelledby="workload-title">
      <div class="head"><h2 id="workload-title" class="long">{id}</h2></div>
      <p class="meta"><span>{owner ? `owner ${owner}` : 'owner unknown'}</span><span>{held.length ? `holds ${held.length} GPUs` : 'holds no GPU now'}</span></p>
      {held.length ? <p>{held.map((g, i) => <>{i ? ', ' : ''}<a key={g.uuid} href={hashOf({ at: 'gpu', id: g.uuid })}>{gpuName(f, g.uuid)}</a></>)}</p> : null}
      <section><h3>Why it was or was not acted on</h3><Answer path={`/explain/workload/${refPath(id)}`} /></section>
      {about.length ? <section><h3>Decisions about its GPUs</h3><List list={about} /></section> : null}
    </article>
  )
}
