// The page: the top line, the heat map with its legend and table, and beside
// it the decisions or what is selected.

import { render } from 'preact'
import { useEffect, useRef } from 'preact/hooks'
import { Alerts } from './alerts'
import { Closest } from './closest'
import { DecisionView } from './decision'
import { Decisions } from './decisions'
import { gpuName, plural } from './format'
import { GPUView } from './gpu'
import { Header, Stopped } from './header'
import { Heatmap } from './heatmap'
import { Nothing, WorkloadView } from './leader'
import { Legend, SignalChoice } from './legend'
import { decisions, fleet, follow, layoutVersion, link, summary } from './live'
import { go, route } from './route'
import { scale } from './scale'
import './page.css' // last, so that it has the last word over uPlot's

function Fleet() {
  void layoutVersion.value
  const f = fleet.value
  if (!f) return <section class="fleet"><p class="empty">{link.value === 'stopped' ? 'The collector does not answer.' : 'Asking for the fleet …'}</p></section>
  if (f.gpus.length === 0) return <NoFleet nodes={f.nodes.length} />
  return (
    <section class="fleet" aria-labelledby="fleet-title">
      <div class="head">
        <h2 id="fleet-title" title={scale.value.title}>Fleet by {scale.value.label.toLowerCase()}</h2>
        <SignalChoice />
      </div>
      <Legend />
      <Heatmap />
      <div class="wide"><Closest /></div>
    </section>
  )
}

function NoFleet({ nodes }: { nodes: number }) {
  return (
    <section class="fleet">
      <div class="empty start">
        <h2>{nodes ? `${plural(nodes, 'node')} expected, no GPU heard yet` : 'No node has been heard yet'}</h2>
        <p>On each GPU node, start the exporter and point it at this collector's bus:</p>
        <pre>evenkeel-node export</pre>
        <p>To see what is wrong on a node: <code>evenkeel-node doctor</code>. For a simulated fleet on this machine: <code>evenkeel up</code>.</p>
        <p class="dim">This page fills by itself within a second of the first frame.</p>
      </div>
    </section>
  )
}

function Side() {
  const r = route.value
  return (
    <aside class={r.at === 'decisions' ? 'side' : 'side chosen'} aria-label={r.at === 'decisions' ? 'Decisions' : 'Selected'}>
      {r.at === 'decisions' ? null : <p class="back"><a href="#/">← All {plural(summary.value?.decisions ?? decisions.value.length, 'decision')}</a><span class="dim"> Esc</span></p>}
      {r.at === 'decisions' ? <><Alerts /><Decisions /></> : r.at === 'decision' ? <DecisionView id={r.id} /> : r.at === 'gpu' ? <GPUView uuid={r.id} /> : r.at === 'workload' ? <WorkloadView id={r.id} /> : <Nothing />}
    </aside>
  )
}

/** useTitle keeps the tab's title honest too. */
function useTitle(): void {
  const r = route.value
  const place = r.at === 'decision' ? r.id : r.at === 'gpu' ? gpuName(fleet.value, r.id) : r.at === 'workload' ? r.id : ''
  const title = [link.value === 'stopped' ? 'stopped' : '', place, 'Evenkeel'].filter(Boolean).join(' · ')
  useEffect(() => {
    document.title = title
  }, [title])
}

function Page() {
  const stuck = useRef<HTMLDivElement>(null)
  useTitle()
  useEffect(() => {
    const observer = new ResizeObserver(() => document.documentElement.style.setProperty('--stuck', `${stuck.current?.offsetHeight ?? 0}px`))
    if (stuck.current) observer.observe(stuck.current)
    return () => observer.disconnect()
  }, [])
  useEffect(() => {
    const leave = (e: KeyboardEvent): void => {
      if (e.key === 'Escape' && route.value.at !== 'decisions') go({ at: 'decisions' })
    }
    addEventListener('keydown', leave)
    return () => removeEventListener('keydown', leave)
  }, [])
  const at = route.value
  useEffect(() => {
    document.querySelector('.side')?.scrollTo(0, 0)
    if (at.at !== 'decisions' && matchMedia('(max-width: 900px)').matches) scrollTo(0, 0)
  }, [at])
  return (
    <div class={`page ${link.value} ${at.at === 'decisions' ? '' : 'selected'}`}>
      <div class="stuck" ref={stuck}>
        <Header />
        <Stopped />
      </div>
      <main>
        <Fleet />
        <Side />
      </main>
      <footer class="dim">
        Times are UTC. The same as JSON: <a href="/api/evenkeel/v1/openapi.yaml">API</a>. <a href="/licences.txt">Licences</a>.{summary.value?.version ? ` Evenkeel ${summary.value.version}.` : ''}
      </footer>
    </div>
  )
}

const root = document.getElementById('page')
if (root) {
  follow()
  render(<Page />, root)
}
