// A chart of one GPU's past: uPlot with lines for mark and aim, and a stroke
// where an act or an undo took place.

import uPlot from 'uplot'
import 'uplot/dist/uPlot.min.css'
import { useEffect, useRef } from 'preact/hooks'
import type { Instant } from './api'
import { clock, fixed } from './format'
import { theme } from './theme'
import type { Theme } from './theme'

export type Field = 'headroom_celsius' | 'temperature_core_celsius' | 'temperature_memory_celsius' | 'power_watts' | 'power_limit_watts'

export interface Line { field: Field; label: string; stepped?: boolean }
export interface Level { at: number; label: string; tone: 'mark' | 'aim' | 'plain' }
export interface Event { at: number; label: string }

interface Props {
  title: string
  unit: string
  points: Instant[]
  lines: Line[]
  levels?: Level[]
  events?: Event[]
  from: number
  to: number
  height?: number
  /** the least span of the value axis */
  least?: number
  /** the longest distance of two points, in seconds, that a line goes over */
  gap?: number
}

/** columns turns samples into uPlot's columns, with a hole where time has one. */
function columns({ points, lines, gap = 5 }: Props): uPlot.AlignedData {
  const x: number[] = []
  const y: (number | null)[][] = lines.map(() => [])
  let before = 0
  for (const p of points) {
    const t = Date.parse(p.time) / 1000
    if (before && t - before > gap) {
      x.push(before + 1)
      for (const column of y) column.push(null)
    }
    x.push(t)
    lines.forEach((l, i) => y[i]?.push(p[l.field] ?? null))
    before = t
  }
  return [x, ...y] as uPlot.AlignedData
}

function overlay(u: uPlot, t: Theme, levels: Level[], events: Event[]): void {
  const c = u.ctx
  const { left, top, width, height } = u.bbox
  const px = devicePixelRatio || 1
  c.save()
  c.font = `${11 * px}px system-ui, sans-serif`
  c.lineWidth = px
  for (const l of levels) {
    const y = Math.round(u.valToPos(l.at, 'y', true)) + 0.5
    if (y < top || y > top + height) continue
    c.strokeStyle = c.fillStyle = l.tone === 'mark' ? t.mark : l.tone === 'aim' ? t.aim : t.dim
    c.setLineDash(l.tone === 'mark' ? [] : [4 * px, 3 * px])
    c.beginPath()
    c.moveTo(left, y)
    c.lineTo(left + width, y)
    c.stroke()
    c.textAlign = 'right'
    c.textBaseline = y - top < 14 * px ? 'top' : 'bottom'
    c.fillText(l.label, left + width - 3 * px, y + (y - top < 14 * px ? 2 : -2) * px)
  }
  c.setLineDash([])
  for (const e of events) {
    const x = Math.round(u.valToPos(e.at / 1000, 'x', true)) + 0.5
    if (x < left || x > left + width) continue
    c.strokeStyle = c.fillStyle = t.act
    c.lineWidth = 1.5 * px
    c.beginPath()
    c.moveTo(x, top)
    c.lineTo(x, top + height)
    c.stroke()
    const right = x + c.measureText(e.label).width + 6 * px < left + width
    c.textAlign = right ? 'left' : 'right'
    c.textBaseline = 'top'
    c.fillText(e.label, x + (right ? 4 : -4) * px, top + 2 * px)
  }
  c.restore()
}

function options(p: Props, t: Theme, width: number, show: (u: uPlot) => void): uPlot.Options {
  const axis = { stroke: t.dim, grid: { stroke: t.line, width: 1 }, ticks: { show: false }, font: '11px system-ui, sans-serif' }
  const levels = p.levels ?? []
  return {
    width, height: p.height ?? 150,
    tzDate: s => uPlot.tzDate(new Date(s * 1e3), 'UTC'),
    cursor: { sync: { key: 'gpu' }, drag: { x: false, y: false }, points: { size: 5 } },
    legend: { show: false },
    scales: {
      x: { time: true, range: [p.from / 1000, p.to / 1000] },
      y: {
        range: (_u, min, max) => {
          const known = levels.map(l => l.at)
          let lo = Math.min(min ?? Infinity, ...known)
          let hi = Math.max(max ?? -Infinity, ...known)
          if (!Number.isFinite(lo) || !Number.isFinite(hi)) return [0, 1]
          const short = (p.least ?? 0) - (hi - lo)
          if (short > 0) [lo, hi] = [lo - short / 2, hi + short / 2]
          const air = (hi - lo) * 0.08 || 1
          return [lo - air, hi + air]
        },
      },
    },
    axes: [
      { ...axis, space: 70, size: 22, values: (_u, ticks) => ticks.map(s => clock(s * 1000)) },
      { ...axis, space: 28, size: 44, values: (_u, ticks) => ticks.map(v => fixed(v, ticks.every(Number.isInteger) ? 0 : 1)) },
    ],
    series: [
      {},
      ...p.lines.map((l, i): uPlot.Series => {
        const s: uPlot.Series = { label: l.label, stroke: t.series[i] ?? t.text, width: 1.5, points: { show: false } }
        const stepped = uPlot.paths.stepped
        if (l.stepped && stepped) s.paths = stepped({ align: 1 })
        return s
      }),
    ],
    hooks: { draw: [u => overlay(u, t, levels, p.events ?? [])], setCursor: [show], setData: [show] },
  }
}

export function Chart(p: Props) {
  const box = useRef<HTMLDivElement>(null)
  const plot = useRef<uPlot | null>(null)
  const t = theme.value
  const shape = JSON.stringify([p.lines, p.levels, p.events, p.height, p.least, p.unit])

  useEffect(() => {
    const el = box.current
    if (!el) return
    // The legend has the values under the cursor, else the last ones.
    const show = (u: uPlot): void => {
      const pointed = u.cursor.idx
      const i = pointed ?? (u.data[0]?.length ?? 0) - 1
      const x = u.data[0]?.[i]
      const at = el.parentElement?.querySelector('.at')
      if (at) at.textContent = typeof pointed === 'number' && x !== undefined ? `at ${clock(x * 1000)}` : ''
      el.parentElement?.querySelectorAll('.keyed b').forEach((b, n) => {
        const v = u.data[n + 1]?.[i]
        b.textContent = v === null || v === undefined ? '–' : `${fixed(v, Math.abs(v) >= 100 ? 0 : 1)}\u00a0${p.unit}`
      })
    }
    plot.current = new uPlot(options(p, t, el.clientWidth, show), columns(p), el)
    show(plot.current)
    const observer = new ResizeObserver(() => plot.current?.setSize({ width: el.clientWidth, height: p.height ?? 150 }))
    observer.observe(el)
    return () => {
      observer.disconnect()
      plot.current?.destroy()
      plot.current = null
    }
  }, [shape, t])

  useEffect(() => {
    const u = plot.current
    if (!u) return
    u.batch(() => {
      u.setData(columns(p), false)
      u.setScale('x', { min: p.from / 1000, max: p.to / 1000 })
    })
  }, [p.points, p.from, p.to])

  const last = p.points.at(-1)
  const words = p.lines.map(l => `${l.label} ${last?.[l.field] === undefined ? 'unknown' : `${fixed(last[l.field] ?? 0, 1)} ${p.unit}`}`).join(', ')
  return (
    <figure class="chart">
      <figcaption>
        <span>{p.title}</span><span class="dim at" />
        {p.lines.map((l, i) => <span class="keyed" key={l.field}><i style={{ background: t.series[i] ?? '' }} /><span class="dim">{l.label} </span><b /></span>)}
      </figcaption>
      <div ref={box} role="img" aria-label={`${p.title} over time. Last: ${words}.${(p.levels ?? []).map(l => ` ${l.label} ${l.at} ${p.unit}.`).join('')}`} />
    </figure>
  )
}
