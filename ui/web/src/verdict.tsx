// What is judged of a GPU and its node, in words, with what each rests on.

import type { ComponentChildren } from 'preact'
import { getJSON } from './api'
import type { GPUDetail, NodeDetail } from './api'
import { useFetched } from './fetched'
import { fixed, plural, quantity, span } from './format'
import { now } from './live'

type Tone = 'good' | 'bad' | 'wait' | 'open' | 'past'

const signs: Record<Tone, string> = { good: '✓', bad: '✕', wait: '?', open: '◐', past: '–' }

const healthTones: Record<string, Tone> = { ok: 'good', watch: 'open', degraded: 'bad', reset_needed: 'bad', drain_needed: 'bad', lost: 'bad', hung: 'bad', absent: 'bad', doubtful: 'wait', unknown: 'wait' }

const idleWords: Record<string, string> = {
  no_process: 'no process holds it', finished_holding: 'finished, still held', waiting_data: 'waiting for data', waiting_network: 'waiting for the network',
  cpu_starved: 'waiting for the CPU', throttled: 'slowed down to nothing', unknown: 'why is not known',
}

const contentionWords: Record<string, string> = { noisy_neighbour: 'others share it and it is never free', nvlink: 'its NVLinks are full', network: 'the node’s ports are full' }

const fabricWords: Record<string, string> = {
  ok: 'ok', degraded: 'links down that should be up', errors: 'links have errors', not_ready: 'not joined by the driver yet', unconnected: 'no link was up since the machine started', unknown: 'not known',
}

const hostWords: Record<string, [string, string]> = {
  storage_stalled: ['storage is stalled', 'storage keeps up'], cpu_starved: ['the CPU is the bottleneck', 'the CPU keeps up'], network_saturated: ['the network is full', 'the network has room'],
  network_errors: ['the network has errors', 'the network has no errors'], network_down: ['a network port is down', 'no network port is down'],
}

const plain = (word: string): string => word.replaceAll('_', ' ')

/** said is a word's meaning; one that is not known here is said as it is. */
const said = (words: Record<string, string>, word: string): string => words[word] ?? plain(word)

const lasting = (since?: string): string => (since ? ` for ${span((now.value - Date.parse(since)) / 1000)}` : '')

interface VerdictProps { name: string; tone: Tone; word: string; since?: string | undefined; evidence?: string[] | undefined; children?: ComponentChildren }

function Verdict({ name, tone, word, since, evidence, children }: VerdictProps) {
  return (
    <div>
      <dt>{name}</dt>
      <dd>
        <span class={`badge ${tone}`}><span aria-hidden="true">{signs[tone]} </span>{word}</span>{lasting(since)}{children}
        {evidence?.length ? <ul>{evidence.map(e => <li key={e}>{e}</li>)}</ul> : null}
      </dd>
    </div>
  )
}

/** idleText tells of an idle device: since when, and why. */
export function idleText(g: GPUDetail): string {
  const i = g.idle
  return !i ? 'in use' : !i.since ? 'not known' : `idle${lasting(i.since)}: ${said(idleWords, i.cause)}`
}

export function Verdicts({ g, old }: { g: GPUDetail; old: boolean }) {
  const { data: node } = useFetched(s => getJSON<NodeDetail>(`/nodes/${encodeURIComponent(g.node)}`, s), [g.node], 5000)
  const { health: h, idle: i, contention: c, fabric: f } = g
  return (
    <section class={old ? 'verdicts old' : 'verdicts'} aria-labelledby="verdicts-title">
      <h3 id="verdicts-title">What is judged of it</h3>
      <dl>
        {h ? <Verdict name="Health" tone={healthTones[h.class] ?? 'wait'} word={plain(h.class)} since={h.class === 'ok' ? undefined : h.since} evidence={h.evidence}>{h.reason ? `: ${h.reason}` : ''}</Verdict>
          : <Verdict name="Health" tone="wait" word="not known" />}
        {!i ? <Verdict name="Use" tone="good" word="in use" />
          : i.since ? <Verdict name="Use" tone="open" word="idle" since={i.since} evidence={i.evidence}>: {said(idleWords, i.cause)}</Verdict>
          : <Verdict name="Use" tone="wait" word="not known" evidence={i.evidence} />}
        {c ? <Verdict name="Contention" tone="bad" word={plain(c.kind)} since={c.since} evidence={[...(c.with?.length ? [`with ${c.with.join(', ')}`] : []), ...(c.evidence ?? [])]}>: {said(contentionWords, c.kind)}, {fixed(c.ratio * 100, 0)} %</Verdict>
          : <Verdict name="Contention" tone="good" word="none known" />}
        {f ? (
          <Verdict name="Fabric" tone={f.state === 'ok' ? 'good' : f.state === 'unknown' || f.state === 'unconnected' ? 'wait' : 'bad'} word={said(fabricWords, f.state)} since={f.state === 'ok' ? undefined : f.since} evidence={f.evidence}>
            : {f.links_up} of {f.links_expected} links up, {quantity(f.saturation_ratio, 'ratio')} full{f.errors_per_second ? `, ${quantity(f.errors_per_second)} errors/s` : ''}
          </Verdict>
        ) : <Verdict name="Fabric" tone="past" word="no NVLink" />}
        {node ? <Host node={node} /> : null}
      </dl>
    </section>
  )
}

/** Host is what holds on the node; what is known not to hold stands behind. */
function Host({ node }: { node: NodeDetail }) {
  const holds = node.host.filter(v => v.holds)
  const words = (name: string, held: boolean): string => hostWords[name]?.[held ? 0 : 1] ?? plain(name)
  const rest = node.host.filter(v => !v.holds).map(v => words(v.name, false))
  return (
    <>
      {node.host.length === 0 ? <Verdict name="Host" tone="wait" word="nothing known" /> : null}
      {holds.map(v => <Verdict key={v.name} name="Host" tone="bad" word={words(v.name, true)} since={v.since} evidence={v.evidence ? [v.evidence] : undefined} />)}
      {rest.length && !holds.length ? <Verdict name="Host" tone="good" word="keeps up">: {rest.join(', ')}</Verdict> : null}
      <Verdict name="Node" tone={node.state !== 'up' ? 'bad' : node.gpus_fresh < node.gpus_expected ? 'open' : 'good'} word={node.state === 'up' ? `${node.gpus_fresh} of ${plural(node.gpus_expected, 'GPU')} fresh` : node.state === 'gone' ? 'not heard any more' : 'never heard'} evidence={node.doubt ? [`in doubt: ${node.doubt}`] : undefined}>
        {node.inlet_celsius === undefined ? '' : `, inlet ${fixed(node.inlet_celsius, 1)} °C`}
      </Verdict>
    </>
  )
}
