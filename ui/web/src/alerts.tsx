// What the rules say now: a short list, the worse first.

import { signal } from '@preact/signals'
import { getJSON } from './api'
import type { Alert } from './api'
import { useFetched } from './fetched'
import { Linked } from './leader'
import { moment, plural, span } from './format'
import { link, now, summary } from './live'

const few = 4
const all = signal(false)

const looks: Record<string, { sign: string; tone: string }> = { critical: { sign: '▲', tone: 'bad' }, warning: { sign: '△', tone: 'bad' } }

/** useAlerts asks for the alerts, again when their number changes and now and then. */
function useAlerts(): { list: Alert[]; error: string | null } {
  const counts = summary.value?.alerts
  const { data, error } = useFetched(async s => (counts ? (await getJSON<{ items: Alert[] }>('/alerts', s)).items.filter(a => a.severity !== 'none') : []), [JSON.stringify(counts)], counts ? 15000 : 0)
  return { list: data ?? [], error: link.value === 'live' ? error : null }
}

export function Alerts() {
  const { list, error } = useAlerts()
  const counts = summary.value?.alerts
  if (!counts) return null // no rules are evaluated here
  const shown = all.value ? list : list.slice(0, few)
  return (
    <section class="alerts" aria-labelledby="alerts-title">
      <div class="head">
        <h2 id="alerts-title">Alerts</h2>
        <span class="dim">{counts.firing ? `${plural(counts.firing, 'firing', 'firing')}${counts.critical ? `, ${counts.critical} critical` : ''}` : 'none firing'}{counts.pending ? `, ${counts.pending} pending` : ''}</span>
        {list.length > few ? <button type="button" class="right plain" aria-expanded={all.value} onClick={() => { all.value = !all.value }}>{all.value ? 'Fewer' : `All ${list.length}`}</button> : null}
      </div>
      {error ? <p class="warn">{error}</p> : null}
      <List list={shown} />
    </section>
  )
}

/** AlertsAbout are those of one GPU, and of its node as a whole. */
export function AlertsAbout({ node, uuid }: { node: string; uuid: string }) {
  const { list } = useAlerts()
  const about = list.filter(a => a.labels.node === node && (a.labels.uuid === undefined || a.labels.uuid === uuid))
  return about.length ? <section><h3>Alerts</h3><List list={about} /></section> : null
}

function List({ list }: { list: Alert[] }) {
  return (
    <ul>
      {list.map(a => {
        const look = looks[a.severity ?? ''] ?? { sign: '·', tone: 'past' }
        return (
          <li key={a.name + JSON.stringify(a.labels)}>
            <span class={`badge ${a.state === 'firing' ? look.tone : 'wait'}`}><span aria-hidden="true">{look.sign} </span>{a.severity ?? 'no severity'}{a.state === 'pending' ? ', pending' : ''}</span>
            <span><Linked text={a.summary ?? a.name} /></span>
            <span class="dim">
              {a.name}, since <time dateTime={a.since}>{moment(Date.parse(a.since), now.value)}</time> ({span((now.value - Date.parse(a.since)) / 1000)})<Runbook at={a.runbook_url} />
            </span>
          </li>
        )
      })}
    </ul>
  )
}

/** Runbook is a link where it leads somewhere, else where it stands in the source tree. */
function Runbook({ at }: { at: string | undefined }) {
  if (!at) return null
  return <>, {/^https?:\/\//.test(at) ? <a href={at} rel="noreferrer">runbook</a> : <>runbook <code>{at}</code></>}</>
}
