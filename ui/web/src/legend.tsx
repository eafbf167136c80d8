// The legend says what the colours mean and how many GPUs have each. Pointing
// at a part shows where those are; a click keeps it so.

import { fixed, grouped } from './format'
import { fleet, version } from './live'
import { classLabel, classOf, classes, kindOf, kinds, pinned, pointed, sameHighlight, scale, scales, slowing } from './scale'
import type { Highlight, Kind } from './scale'
import { patternTile, theme } from './theme'
import { useEffect, useRef } from 'preact/hooks'
import type { ComponentChildren } from 'preact'

function counts(): { byClass: number[]; byKind: Map<Kind, number>; capped: number; slowed: number } {
  void version.value
  const out = { byClass: new Array<number>(classes).fill(0), byKind: new Map<Kind, number>(), capped: 0, slowed: 0 }
  const s = scale.value
  for (const r of fleet.value?.rows ?? []) {
    const kind = kindOf(s, r)
    const v = s.of(r)
    if (kind === 'value' && v !== null) {
      const n = classOf(s, v)
      out.byClass[n] = (out.byClass[n] ?? 0) + 1
    } else out.byKind.set(kind, (out.byKind.get(kind) ?? 0) + 1)
    if (r.fresh && r.capped) out.capped++
    if (r.fresh && slowing(r)) out.slowed++
  }
  return out
}

function Key({ of, count, label, title, children }: { of: Highlight; count: number; label: string; title: string; children: ComponentChildren }) {
  const on = sameHighlight(pinned.value, of)
  return (
    <button
      type="button" class="key" aria-pressed={on} title={title} disabled={count === 0 && !on}
      onPointerEnter={() => { pointed.value = of }} onPointerLeave={() => { pointed.value = null }}
      onClick={() => { pinned.value = on ? null : of; pointed.value = null }}
    >
      {children}<span>{label}</span><b>{grouped(count)}</b>
    </button>
  )
}

function Hatch({ kind, letter }: { kind: Kind; letter: string }) {
  const canvas = useRef<HTMLCanvasElement>(null)
  const t = theme.value
  useEffect(() => {
    const c = canvas.current?.getContext('2d')
    const pattern = c?.createPattern(patternTile(kind, t), 'repeat')
    if (!c || !pattern) return
    c.fillStyle = pattern
    c.fillRect(0, 0, 18, 18)
    c.fillStyle = t.state
    c.fillRect(4, 3, 10, 12)
    c.fillStyle = t.text
    c.font = '700 11px system-ui, sans-serif'
    c.textAlign = 'center'
    c.textBaseline = 'middle'
    c.fillText(letter, 9, 9.5)
  }, [kind, letter, t])
  return <canvas ref={canvas} width={18} height={18} class="swatch" aria-hidden="true" />
}

export function SignalChoice() {
  return (
    <fieldset class="choice">
      <legend class="unseen">Signal that colours the cells</legend>
      {scales.map(s => (
        <label key={s.name} title={s.title}>
          <input type="radio" name="signal" checked={scale.value === s} onChange={() => { scale.value = s; pinned.value = null }} />
          <span>{s.label}</span>
        </label>
      ))}
    </fieldset>
  )
}

export function Legend() {
  const n = counts()
  const s = scale.value
  const t = theme.value
  return (
    <div class="legend" role="group" aria-label={`Legend: ${s.title}`}>
      <div class="keys">
        <span class="dim">{s.label}, {s.unit}</span>
        {n.byClass.map((count, i) => (
          <Key key={i} of={{ class: i }} count={count} label={classLabel(s, i)} title={`${s.title}: ${classLabel(s, i)} ${s.unit}`}>
            <i class="swatch" style={{ background: t.ramp[i] ?? '' }} />
          </Key>
        ))}
      </div>
      <div class="keys">
        {n.capped ? <Key of={{ mark: 'capped' }} count={n.capped} label="capped" title="The power limit in force is below the default"><i class="swatch capped" /></Key> : null}
        {n.slowed ? <Key of={{ mark: 'slowed' }} count={n.slowed} label="slowed by heat" title="The device or its driver holds clocks down for heat"><i class="swatch slowed" /></Key> : null}
        {kinds.filter(k => n.byKind.get(k.kind)).map(k => (
          <Key key={k.kind} of={{ kind: k.kind }} count={n.byKind.get(k.kind) ?? 0} label={k.label} title={k.title}><Hatch kind={k.kind} letter={k.letter} /></Key>
        ))}
      </div>
    </div>
  )
}

/** closest lists the GPUs with the hottest values of the chosen signal. */
export function closest(most: number): { gpu: number; value: string }[] {
  void version.value
  const s = scale.value
  const list: { gpu: number; v: number }[] = []
  fleet.value?.rows.forEach((r, gpu) => {
    const v = kindOf(s, r) === 'value' ? s.of(r) : null
    if (v !== null) list.push({ gpu, v })
  })
  list.sort((a, b) => (s.falling ? a.v - b.v : b.v - a.v) || a.gpu - b.gpu)
  return list.slice(0, most).map(({ gpu, v }) => ({ gpu, value: `${fixed(v, s.decimals)} ${s.unit}` }))
}
