// The list of decisions, newest first.

import { signal } from '@preact/signals'
import type { DecisionLine } from './api'
import { grouped, moment, targetName } from './format'
import { decisions, fleet, mostDecisions, now, summary } from './live'
import { Badge, isOpen } from './outcome'
import { hashOf } from './route'

const onlyOpen = signal(false)

export function Decisions() {
  const all = decisions.value
  const open = all.filter(isOpen)
  const list = onlyOpen.value ? open : all
  return (
    <section aria-labelledby="decisions-title">
      <div class="head">
        <h2 id="decisions-title">Decisions</h2>
        <fieldset class="choice">
          <legend class="unseen">Which decisions</legend>
          <label><input type="radio" name="which" checked={!onlyOpen.value} onChange={() => { onlyOpen.value = false }} /><span>All {grouped(summary.value?.decisions ?? all.length)}</span></label>
          <label title="Decisions that still hold something"><input type="radio" name="which" checked={onlyOpen.value} onChange={() => { onlyOpen.value = true }} /><span>Open {grouped(summary.value?.decisions_open ?? open.length)}</span></label>
        </fieldset>
        <a class="right" href="#/nothing">Why nothing now?</a>
      </div>
      {list.length ? <List list={list} /> : (
        <p class="empty">{all.length ? 'None is open: nothing is held now.' : <>No decision yet. One is written when a signal crosses a policy's mark; until then, <a href="#/nothing">the rebalancer says why nothing happens</a>.</>}</p>
      )}
      {all.length >= mostDecisions ? <p class="dim">These are of the newest {mostDecisions}. Older ones: <code>evenkeel get decisions</code></p> : null}
    </section>
  )
}

export function List({ list }: { list: DecisionLine[] }) {
  const step = (e: KeyboardEvent): void => {
    if (e.key !== 'ArrowDown' && e.key !== 'ArrowUp') return
    const links = [...(e.currentTarget as HTMLElement).querySelectorAll('a')]
    const i = links.indexOf(document.activeElement as HTMLAnchorElement)
    links[i + (e.key === 'ArrowDown' ? 1 : -1)]?.focus()
    e.preventDefault()
  }
  return (
    <ol class="decisions" onKeyDown={step}>
      {list.map(d => (
        <li key={d.id}>
          <a href={hashOf({ at: 'decision', id: d.id })}>
            <time dateTime={d.time}>{moment(Date.parse(d.time), now.value)}</time>
            <span class="what"><b>{d.act}</b> {targetName(fleet.value, d.target)}</span>
            <Badge outcome={d.outcome} />
            <span class="why">{d.why}</span>
          </a>
        </li>
      ))}
    </ol>
  )
}
