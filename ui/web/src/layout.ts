// Where each GPU's cell stands: rows of the hall hold racks, racks hold nodes,
// nodes hold GPUs. Cells are as large as fit the height without scrolling.

import type { Fleet } from './live'

export interface Label { x: number; y: number; width: number; text: string; kind: 'row' | 'rack' | 'node'; row?: number[] }

export interface Layout {
  cell: number
  width: number
  height: number
  x: Float32Array
  y: Float32Array
  labels: Label[]
}

const sizes = [56, 48, 42, 36, 30, 26, 22, 19, 16, 14, 12, 10, 9, 8, 7, 6, 5, 4]

const margin = 4

interface NodeGroup { name: string; gpus: number[] }
interface Rack { name: string; nodes: NodeGroup[] }
interface HallRow { name: string; racks: Rack[]; gpus: number[] }

const inOrder = new Intl.Collator('en', { numeric: true }).compare

/** group sorts the fleet by row, rack and node. A node without a rack is a
 * rack of its own without a name. */
export function group(f: Fleet): HallRow[] {
  const nodes: NodeGroup[] = f.nodes.map(n => ({ name: n.name, gpus: [] }))
  f.gpus.forEach((g, i) => nodes[g.node]?.gpus.push(i))
  const rows = new Map<string, Map<string, NodeGroup[]>>()
  f.nodes.forEach((n, i) => {
    const node = nodes[i]
    if (!node || node.gpus.length === 0) return
    const racks = rows.get(n.row ?? '') ?? new Map<string, NodeGroup[]>()
    rows.set(n.row ?? '', racks)
    const key = n.rack ? `r${n.rack}` : `n${n.name}`
    racks.set(key, [...(racks.get(key) ?? []), node])
  })
  return [...rows].sort((a, b) => (a[0] === '' ? 1 : b[0] === '' ? -1 : inOrder(a[0], b[0]))).map(([name, racks]) => {
    const sorted = [...racks].sort((a, b) => inOrder(a[0], b[0])).map(([key, members]) => ({
      name: key.startsWith('r') ? key.slice(1) : '',
      nodes: members.sort((a, b) => inOrder(a.name, b.name)),
    }))
    return { name, racks: sorted, gpus: sorted.flatMap(r => r.nodes.flatMap(n => n.gpus)) }
  })
}

interface Size { cell: number; gap: number; perLine: number; nodeLabel: number; rackLabel: number; rowLabel: number; nodeGap: number; rackGap: number; rowGap: number }

function sizing(cell: number, rows: HallRow[]): Size {
  const named = rows.some(r => r.racks.some(k => k.name !== ''))
  return {
    cell, gap: cell >= 14 ? 2 : 1, perLine: cell >= 16 ? 8 : 4,
    nodeLabel: cell >= 16 ? 15 : 0, rackLabel: named && cell >= 9 ? 15 : 0, rowLabel: rows.length > 1 || rows[0]?.name ? 18 : 0,
    nodeGap: cell >= 16 ? 7 : cell >= 9 ? 4 : 2, rackGap: cell >= 16 ? 16 : cell >= 9 ? 9 : 5, rowGap: cell >= 9 ? 16 : 10,
  }
}

/** Flow places blocks left to right and starts a new line when one is full. */
class Flow {
  x: number
  line = 0
  widest = 0
  constructor(private left: number, private top: number, private width: number, private gapX: number, private gapY: number) {
    this.x = left
  }
  place(w: number, h: number): [number, number] {
    if (this.x > this.left && this.x + w > this.left + this.width) {
      this.top += this.line + this.gapY
      this.x = this.left
      this.line = 0
    }
    const at: [number, number] = [this.x, this.top]
    this.widest = Math.max(this.widest, this.x + w - this.left)
    this.x += w + this.gapX
    this.line = Math.max(this.line, h)
    return at
  }
  get bottom(): number {
    return this.top + this.line
  }
}

function nodeSize(n: NodeGroup, z: Size): [number, number] {
  const columns = Math.min(z.perLine, n.gpus.length)
  const lines = Math.ceil(n.gpus.length / z.perLine)
  return [columns * (z.cell + z.gap) - z.gap, z.nodeLabel + lines * (z.cell + z.gap) - z.gap]
}

function rackSize(r: Rack, z: Size): [number, number] {
  let w = 0
  let h = r.name ? z.rackLabel : 0
  r.nodes.forEach((n, i) => {
    const [nw, nh] = nodeSize(n, z)
    w = Math.max(w, nw)
    h += nh + (i ? z.nodeGap : 0)
  })
  return [w, h]
}

function placeRack(r: Rack, x: number, y: number, w: number, z: Size, out: Layout): void {
  if (r.name && z.rackLabel) {
    out.labels.push({ x, y, width: w, text: r.name, kind: 'rack' })
    y += z.rackLabel
  }
  for (const n of r.nodes) {
    if (z.nodeLabel) out.labels.push({ x, y, width: w, text: n.name, kind: 'node' })
    n.gpus.forEach((g, i) => {
      out.x[g] = x + (i % z.perLine) * (z.cell + z.gap)
      out.y[g] = y + z.nodeLabel + Math.floor(i / z.perLine) * (z.cell + z.gap)
    })
    y += nodeSize(n, z)[1] + z.nodeGap
  }
}

function arrange(rows: HallRow[], gpus: number, width: number, z: Size): Layout {
  // The margin is for the ring around a selected cell.
  const out: Layout = { cell: z.cell, width, height: 0, x: new Float32Array(gpus), y: new Float32Array(gpus), labels: [] }
  const hall = new Flow(margin, margin, width - 2 * margin, z.rackGap * 2, z.rowGap)
  for (const row of rows) {
    const sizesOfRacks = row.racks.map(r => rackSize(r, z))
    const trial = new Flow(0, 0, width - 2 * margin, z.rackGap, z.rackGap)
    for (const [w, h] of sizesOfRacks) trial.place(w, h)
    const [x, y] = hall.place(Math.max(trial.widest, z.rowLabel ? 90 : 0), trial.bottom + z.rowLabel)
    if (z.rowLabel) out.labels.push({ x, y, width: Math.max(trial.widest, 90), text: row.name, kind: 'row', row: row.gpus })
    const flow = new Flow(x, y + z.rowLabel, Math.max(trial.widest, 1), z.rackGap, z.rackGap)
    row.racks.forEach((r, i) => {
      const [w, h] = sizesOfRacks[i] ?? [0, 0]
      const [rx, ry] = flow.place(w, h)
      placeRack(r, rx, ry, w, z, out)
    })
  }
  out.height = Math.ceil(hall.bottom) + margin
  return out
}

export function layout(f: Fleet, width: number, height: number): Layout {
  const rows = group(f)
  let last: Layout | undefined
  for (const cell of sizes) {
    const z = sizing(cell, rows)
    // A node as it stands must fit the width; phones get smaller cells.
    const widest = Math.max(0, ...rows.flatMap(r => r.racks.map(k => rackSize(k, z)[0])))
    if (widest > width - 2 * margin && cell > 4) continue
    last = arrange(rows, f.gpus.length, width, z)
    if (last.height <= height) return last
  }
  return last ?? arrange(rows, f.gpus.length, width, sizing(4, rows))
}

/** cellAt finds the GPU under a point, a little slack included. */
export function cellAt(l: Layout, px: number, py: number): number | null {
  for (let i = 0; i < l.x.length; i++) {
    const x = l.x[i] ?? 0
    const y = l.y[i] ?? 0
    if (px >= x - 1 && px < x + l.cell + 1 && py >= y - 1 && py < y + l.cell + 1) return i
  }
  return null
}

/** neighbour is the nearest cell in a direction, for the arrow keys. */
export function neighbour(l: Layout, from: number, dx: number, dy: number): number {
  let best = from
  let least = Infinity
  const x0 = l.x[from] ?? 0
  const y0 = l.y[from] ?? 0
  for (let i = 0; i < l.x.length; i++) {
    const x = (l.x[i] ?? 0) - x0
    const y = (l.y[i] ?? 0) - y0
    const along = x * dx + y * dy
    if (along <= 0) continue
    const score = along + 3 * Math.abs(dx ? y : x)
    if (score < least) {
      least = score
      best = i
    }
  }
  return best
}
