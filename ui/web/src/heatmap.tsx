// The heat map: every GPU of the fleet, one cell each.

import { signal, useComputed, useSignalEffect } from '@preact/signals'
import { useEffect, useRef } from 'preact/hooks'
import { celsius, clock, gpuName, plural, quantity, span } from './format'
import { cellAt, layout, neighbour } from './layout'
import type { Layout } from './layout'
import { fleet, layoutVersion, now, version } from './live'
import type { Fleet, Row } from './live'
import { paint } from './paint'
import { decisions } from './live'
import { go, route } from './route'
import { kindOf, kinds, pinned, pointed, scale } from './scale'
import { theme } from './theme'

const box = signal<{ width: number; height: number }>({ width: 0, height: 0 })
const focused = signal<number | null>(null)
const where = signal<{ x: number; y: number } | null>(null)

/** The selected GPU: the route's own, or its decision's target. */
function selected(f: Fleet): number | null {
  const r = route.value
  let uuid: string | undefined
  if (r.at === 'gpu') uuid = r.id
  if (r.at === 'decision') uuid = decisions.value.find(d => d.id === r.id)?.target.uuid
  return uuid === undefined ? null : f.places.get(uuid) ?? null
}

export function Heatmap() {
  const canvas = useRef<HTMLCanvasElement>(null)
  const frame = useRef<HTMLDivElement>(null)
  const placed = useComputed<Layout | null>(() => {
    void layoutVersion.value
    const f = fleet.value
    return f && box.value.width > 0 ? layout(f, box.value.width, box.value.height) : null
  })

  useEffect(() => {
    const measure = (): void => {
      const width = Math.floor(frame.current?.clientWidth ?? 0)
      // What is left of the window under head and legend, with the table's first
      // lines in sight; a phone scrolls anyway.
      const height = width < 560 ? Math.floor(innerHeight * 1.2) : Math.max(280, innerHeight - 350)
      if (width !== box.value.width || height !== box.value.height) box.value = { width, height }
    }
    const observer = new ResizeObserver(measure)
    if (frame.current) observer.observe(frame.current)
    addEventListener('resize', measure)
    measure()
    return () => {
      observer.disconnect()
      removeEventListener('resize', measure)
    }
  }, [])

  useSignalEffect(() => {
    void version.value
    const f = fleet.value
    const l = placed.value
    if (!f || !l || !canvas.current) return
    paint(canvas.current, { fleet: f, layout: l, scale: scale.value, theme: theme.value, highlight: pointed.value ?? pinned.value, focused: focused.value, selected: selected(f) })
  })

  const point = (e: PointerEvent): void => {
    const l = placed.value
    if (!l) return
    const i = cellAt(l, e.offsetX, e.offsetY)
    focused.value = i
    where.value = i === null ? null : { x: e.clientX, y: e.clientY }
  }
  const press = (): void => {
    const g = focused.value === null ? undefined : fleet.value?.gpus[focused.value]
    if (g) go({ at: 'gpu', id: g.uuid })
  }
  const steer = (e: KeyboardEvent): void => {
    const l = placed.value
    if (!l || l.x.length === 0) return
    const moves: Record<string, [number, number]> = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }
    const move = moves[e.key]
    let next = focused.value ?? (fleet.value ? selected(fleet.value) : null) ?? 0
    if (e.key === 'Enter' || e.key === ' ') press()
    else if (e.key === 'Escape') {
      focused.value = null
      return
    } else if (e.key === 'Home') next = 0
    else if (e.key === 'End') next = l.x.length - 1
    else if (!move) return
    else if (focused.value !== null) next = neighbour(l, next, move[0], move[1])
    e.preventDefault()
    focused.value = next
    const r = canvas.current?.getBoundingClientRect()
    if (r) where.value = { x: r.left + (l.x[next] ?? 0) + l.cell, y: r.top + (l.y[next] ?? 0) + l.cell }
  }
  const leave = (): void => {
    focused.value = null
    where.value = null
  }

  const f = fleet.value
  const s = scale.value
  return (
    <div class="map" ref={frame} data-cell={placed.value?.cell}>
      <canvas
        ref={canvas} tabIndex={0} role="img"
        aria-label={`Heat map of ${plural(f?.gpus.length ?? 0, 'GPU')} by ${s.label.toLowerCase()}. Arrow keys go from GPU to GPU, Enter opens one. The table below lists the ones that matter most.`}
        aria-describedby="map-cell"
        onPointerMove={point} onPointerLeave={leave} onClick={e => { point(e as unknown as PointerEvent); press() }} onKeyDown={steer} onBlur={leave}
      />
      <div id="map-cell" class="unseen" aria-live="polite">{f && focused.value !== null ? sentence(f, focused.value) : ''}</div>
      {f && focused.value !== null && where.value ? <Card fleet={f} gpu={focused.value} at={where.value} /> : null}
    </div>
  )
}

/** sentence is a cell in words. */
function sentence(f: Fleet, i: number): string {
  const g = f.gpus[i]
  const r = f.rows[i]
  if (!g || !r) return ''
  const kind = kindOf(scale.value, r)
  const what = kind === 'value' ? `headroom ${celsius(r.headroom)}, ${quantity(r.power, 'watts')} of ${quantity(r.limit, 'watts')}` : kinds.find(k => k.kind === kind)?.label ?? ''
  return `${gpuName(f, g.uuid)}: ${what}${r.capped ? ', capped' : ''}`
}

function Card({ fleet: f, gpu: i, at }: { fleet: Fleet; gpu: number; at: { x: number; y: number } }) {
  void version.value
  const g = f.gpus[i]
  const r = f.rows[i]
  if (!g || !r) return null
  const node = f.nodes[g.node]
  const kind = kindOf(scale.value, r)
  const width = 300
  const left = at.x + 18 + width > innerWidth ? Math.max(4, at.x - width - 14) : at.x + 18
  const place = at.y > innerHeight * 0.55 ? { bottom: `${innerHeight - at.y + 14}px` } : { top: `${at.y + 16}px` }
  return (
    <div class="card" style={{ left: `${left}px`, width: `${width}px`, ...place }} aria-hidden="true">
      <header><b>{node?.name}/{g.index}</b> <span class="dim">{g.model}</span></header>
      {kind !== 'value' && kind !== 'unknown' || r.state === 'unknown' ? <p class="warn">{kinds.find(k => k.kind === kind)?.title}. {r.lastSeen !== null ? `Last value ${span(now.value / 1000 - r.lastSeen)} ago, at ${clock(r.lastSeen * 1000)}.` : 'No value in memory.'}</p> : null}
      <dl class={r.fresh ? '' : 'old'}>
        <Facts r={r} />
        <dt>Workload</dt><dd>{workloadText(f, i)}</dd>
        <dt>UUID</dt><dd class="mono">{g.uuid}</dd>
        <dt>Age</dt><dd>{r.fresh ? 'fresh' : r.lastSeen !== null ? span(now.value / 1000 - r.lastSeen) : 'never seen'}</dd>
      </dl>
    </div>
  )
}

function Facts({ r }: { r: Row }) {
  return (
    <>
      <dt>Headroom</dt><dd><b>{celsius(r.headroom)}</b>{r.reaches !== null ? <span class="warn"> slowdown in about {span(r.reaches)}</span> : null}</dd>
      <dt>Core, memory</dt><dd>{celsius(r.core)}, {celsius(r.memory)}</dd>
      <dt>Power, limit</dt><dd>{quantity(r.power, 'watts')} of {quantity(r.limit, 'watts')}{r.capped ? ', capped' : ''}</dd>
      <dt>Utilisation</dt><dd>{quantity(r.busy, 'ratio')}</dd>
      <dt>SM clock</dt><dd>{quantity(r.clock, 'hertz')}</dd>
      <dt>Throttle</dt><dd>{r.throttle.length ? r.throttle.join(', ') : 'none'}</dd>
    </>
  )
}

function workloadText(f: Fleet, i: number): string {
  const list = f.workloads[i]
  if (!list?.length) return 'none known'
  return list.map(w => (w.owner ? `${w.ref} of ${w.owner}` : w.ref)).join('; ')
}
