// Draws the heat map on a canvas.

import { fixed } from './format'
import type { Layout } from './layout'
import type { Fleet, Row } from './live'
import { classOf, kindOf, kinds, matches, slowing } from './scale'
import type { Highlight, Kind, Scale } from './scale'
import { patternTile } from './theme'
import type { Theme } from './theme'

export interface Picture {
  fleet: Fleet
  layout: Layout
  scale: Scale
  theme: Theme
  highlight: Highlight
  focused: number | null
  selected: number | null
}

const sans = 'system-ui, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif'

/** paint redraws everything: 10,000 cells take a few milliseconds. */
export function paint(canvas: HTMLCanvasElement, p: Picture): void {
  const ratio = devicePixelRatio || 1
  const { width, height } = p.layout
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio)
    canvas.height = Math.round(height * ratio)
    canvas.style.width = `${width}px`
    canvas.style.height = `${height}px`
  }
  const c = canvas.getContext('2d')
  if (!c) return
  c.setTransform(ratio, 0, 0, ratio, 0, 0)
  c.clearRect(0, 0, width, height)
  labels(c, p)
  const patterns = new Map<Kind, CanvasPattern | null>()
  for (const { kind } of kinds) patterns.set(kind, c.createPattern(patternTile(kind, p.theme), 'repeat'))
  p.fleet.rows.forEach((row, i) => cell(c, p, i, row, patterns))
  ring(c, p, p.selected, 2.5)
  ring(c, p, p.focused, 1.5)
}

function labels(c: CanvasRenderingContext2D, p: Picture): void {
  c.textBaseline = 'alphabetic'
  c.textAlign = 'left'
  for (const l of p.layout.labels) {
    let text = l.text
    if (l.kind === 'row') {
      c.font = `600 12px ${sans}`
      c.fillStyle = p.theme.text
      const name = text === '' ? 'no row in inventory' : `Row ${text}`
      c.fillText(name, l.x, l.y + 11)
      const start = c.measureText(name).width + 8
      c.font = `12px ${sans}`
      c.fillStyle = p.theme.dim
      const worst = extreme(p, l.row ?? [])
      const count = `${l.row?.length ?? 0} GPUs`
      text = [worst ? `${count}, ${worst}` : count, worst].find(t => start + c.measureText(t).width <= l.width) ?? ''
      c.fillText(text, l.x + start, l.y + 11)
      continue
    }
    c.font = `11px ${sans}`
    c.fillStyle = p.theme.dim
    c.fillText(fit(c, l.kind === 'rack' && l.width > 60 ? `rack ${text}` : text, l.width), l.x, l.y + 10)
  }
}

/** extreme is a hall row's hottest value. */
function extreme(p: Picture, gpus: number[]): string {
  let worst: number | null = null
  for (const i of gpus) {
    const r = p.fleet.rows[i]
    const v = r && kindOf(p.scale, r) === 'value' ? p.scale.of(r) : null
    if (v !== null && (worst === null || (p.scale.falling ? v < worst : v > worst))) worst = v
  }
  if (worst === null) return ''
  return `${p.scale.falling ? 'least' : 'most'} ${fixed(worst, p.scale.decimals)} ${p.scale.unit}`
}

function fit(c: CanvasRenderingContext2D, text: string, width: number): string {
  if (c.measureText(text).width <= width) return text
  while (text.length > 1 && c.measureText(text + '…').width > width) text = text.slice(0, -1)
  return text + '…'
}

function cell(c: CanvasRenderingContext2D, p: Picture, i: number, row: Row, patterns: Map<Kind, CanvasPattern | null>): void {
  const x = p.layout.x[i] ?? 0
  const y = p.layout.y[i] ?? 0
  const s = p.layout.cell
  const kind = kindOf(p.scale, row)
  const value = p.scale.of(row)
  c.globalAlpha = matches(p.highlight, p.scale, row) ? 1 : 0.13
  if (kind !== 'value' || value === null) {
    c.save()
    c.translate(x, y) // so that each cell has its pattern whole
    c.fillStyle = patterns.get(kind) ?? p.theme.state
    c.fillRect(0, 0, s, s)
    c.restore()
    if (s >= 10) letter(c, p, kind, x, y, s)
  } else {
    const n = classOf(p.scale, value)
    c.fillStyle = p.theme.ramp[n] ?? p.theme.state
    c.fillRect(x, y, s, s)
    if (row.capped) cap(c, p, x, y, s)
    if (s >= 26) number(c, p, value, n, x, y, s)
    if (slowing(row) && s >= 8) slow(c, p, n, x, y, s)
  }
  c.globalAlpha = 1
}

function letter(c: CanvasRenderingContext2D, p: Picture, kind: Kind, x: number, y: number, s: number): void {
  const size = Math.min(16, Math.max(8, Math.round(s * 0.55)))
  c.font = `700 ${size}px ${sans}`
  c.textAlign = 'center'
  c.textBaseline = 'middle'
  const text = kinds.find(k => k.kind === kind)?.letter ?? '?'
  if (s >= 16) { // a plate under the letter keeps the hatching from crossing it
    c.fillStyle = p.theme.state
    c.fillRect(x + s / 2 - size * 0.55, y + s / 2 - size * 0.6, size * 1.1, size * 1.2)
  }
  c.fillStyle = p.theme.text
  c.fillText(text, x + s / 2, y + s / 2 + 0.5)
}

/** cap is a frame set off from the fill, so that it shows on every colour. */
function cap(c: CanvasRenderingContext2D, p: Picture, x: number, y: number, s: number): void {
  const w = s >= 16 ? 2 : 1
  if (s >= 10) {
    c.strokeStyle = p.theme.background
    c.lineWidth = 1
    c.strokeRect(x + w + 0.5, y + w + 0.5, s - 2 * w - 1, s - 2 * w - 1)
  }
  c.strokeStyle = p.theme.text
  c.lineWidth = w
  c.strokeRect(x + w / 2, y + w / 2, s - w, s - w)
}

function number(c: CanvasRenderingContext2D, p: Picture, value: number, n: number, x: number, y: number, s: number): void {
  c.font = `${s >= 42 ? 13 : 11}px ${sans}`
  c.textAlign = 'center'
  c.textBaseline = 'middle'
  c.fillStyle = p.theme.inks[n] ?? p.theme.text
  c.fillText(fixed(value, s >= 36 && Math.abs(value) < 100 && !Number.isInteger(value) ? p.scale.decimals : 0), x + s / 2, y + s / 2 + 0.5)
}

/** slow is a corner that says: held down for heat. */
function slow(c: CanvasRenderingContext2D, p: Picture, n: number, x: number, y: number, s: number): void {
  const w = Math.max(4, Math.round(s * 0.3))
  c.fillStyle = p.theme.inks[n] ?? p.theme.text
  c.beginPath()
  c.moveTo(x + s - w, y)
  c.lineTo(x + s, y)
  c.lineTo(x + s, y + w)
  c.fill()
}

function ring(c: CanvasRenderingContext2D, p: Picture, i: number | null, w: number): void {
  if (i === null) return
  const grow = w / 2 + 1
  c.strokeStyle = p.theme.accent
  c.lineWidth = w
  c.strokeRect((p.layout.x[i] ?? 0) - grow, (p.layout.y[i] ?? 0) - grow, p.layout.cell + 2 * grow, p.layout.cell + 2 * grow)
}
