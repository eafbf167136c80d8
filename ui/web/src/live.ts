// The fleet as the stream tells it, and whether the stream still tells.

import { computed, signal } from '@preact/signals'
import { root } from './api'
import type { DecisionLine, GPUPlace, NodePlace, Summary, Update, WorkloadName } from './api'

/** Row is a GPU's changing values; null is unknown. */
export interface Row {
  state: string
  fresh: boolean
  lastSeen: number | null
  headroom: number | null
  core: number | null
  memory: number | null
  power: number | null
  limit: number | null
  busy: number | null
  clock: number | null
  throttle: string[]
  capped: boolean
  reaches: number | null
}

export interface Fleet {
  nodes: NodePlace[]
  gpus: GPUPlace[]
  rows: Row[]
  workloads: (WorkloadName[] | undefined)[]
  /** places finds a GPU by uuid. */
  places: Map<string, number>
}

/** fleet is null until the first snapshot. Its lists change in place; version says when. */
export const fleet = signal<Fleet | null>(null)
export const version = signal(0)
export const layoutVersion = signal(0)
export const summary = signal<Summary | null>(null)
export const decisions = signal<DecisionLine[]>([])

/** Where the stream stands: the server's clock at the last event, and when that came. */
const lastEvent = signal<{ server: number; at: number } | null>(null)
const opened = signal(false)
const monotonic = signal(performance.now())

/** silence is how long nothing has come, in seconds; null before the first event. */
export const silence = computed(() => (lastEvent.value ? Math.max(0, (monotonic.value - lastEvent.value.at) / 1000) : null))

/** A heartbeat comes every 2 s; two missed and the values count as old. */
const longestSilence = 4.5

export type Link = 'connecting' | 'live' | 'stopped'
export const link = computed<Link>(() => {
  const s = silence.value
  if (s === null) return 'connecting'
  return opened.value && s < longestSilence ? 'live' : 'stopped'
})

/** now is the server's clock, in milliseconds since 1970. */
export const now = computed(() => {
  const e = lastEvent.value
  return e ? e.server + (monotonic.value - e.at) : Date.now()
})

/** asOf is the server's time of the values shown. */
export const asOf = computed(() => lastEvent.value?.server ?? null)

const columns = new Map<string, number>()
let states: string[] = []
let reasons: string[] = []

function readRow(values: (number | null)[]): [number, Row] {
  const get = (name: string): number | null => values[columns.get(name) ?? -1] ?? null
  const bits = get('throttle') ?? 0
  const row: Row = {
    state: states[get('state') ?? 0] ?? 'unknown',
    fresh: get('fresh') === 1,
    lastSeen: get('last_seen'),
    headroom: get('headroom_celsius'),
    core: get('temperature_core_celsius'),
    memory: get('temperature_memory_celsius'),
    power: get('power_watts'),
    limit: get('power_limit_watts'),
    busy: get('utilization_ratio'),
    clock: get('sm_clock_hertz'),
    throttle: bits === 0 ? [] : reasons.filter((r, i) => r !== 'idle' && (bits >> i) & 1),
    capped: get('capped') === 1,
    reaches: get('seconds_to_slowdown'),
  }
  return [get('gpu') ?? -1, row]
}

const unknownRow: Row = {
  state: 'unknown', fresh: false, lastSeen: null, headroom: null, core: null, memory: null, power: null, limit: null,
  busy: null, clock: null, throttle: [], capped: false, reaches: null,
}

function takeSnapshot(u: Update): void {
  columns.clear()
  u.columns?.forEach((name, i) => columns.set(name, i))
  states = u.states ?? []
  reasons = u.throttle_reasons ?? []
  const gpus = u.gpus ?? []
  const f: Fleet = { nodes: u.nodes ?? [], gpus, rows: gpus.map(() => unknownRow), workloads: gpus.map(() => undefined), places: new Map() }
  gpus.forEach((g, i) => f.places.set(g.uuid, i))
  decisions.value = []
  merge(f, u)
  fleet.value = f
  layoutVersion.value++
}

/** The stream tells of the newest decisions, and says which it tells of no more; older ones are asked for. */
export const mostDecisions = 200

function merge(f: Fleet, u: Update): void {
  for (const values of u.rows ?? []) {
    const [i, row] = readRow(values)
    if (i in f.rows) f.rows[i] = row
  }
  for (const p of u.placements ?? []) f.workloads[p.gpu] = p.workloads
  if (u.decisions?.length || u.decisions_gone?.length) {
    const byID = new Map(decisions.value.map(d => [d.id, d]))
    for (const d of u.decisions ?? []) byID.set(d.id, d)
    for (const id of u.decisions_gone ?? []) byID.delete(id)
    decisions.value = [...byID.values()].sort((a, b) => (a.time === b.time ? (a.id < b.id ? 1 : -1) : a.time < b.time ? 1 : -1))
  }
}

function takeChange(u: Update): void {
  const f = fleet.value
  if (!f) return
  if (u.nodes?.length) {
    const places = new Map(f.nodes.map((n, i) => [n.name, i]))
    for (const n of u.nodes) {
      const i = places.get(n.name)
      if (i !== undefined) f.nodes[i] = n
    }
  }
  merge(f, u)
}

let source: EventSource | null = null
let openedAt = 0
let lastID = ''

function receive(event: MessageEvent<string>, take: (u: Update) => void): void {
  const u = JSON.parse(event.data) as Update
  take(u)
  lastID = u.id
  if (u.summary) summary.value = u.summary
  lastEvent.value = { server: Date.parse(u.time), at: performance.now() }
  monotonic.value = performance.now()
  opened.value = true
  version.value++
}

function open(): void {
  source?.close()
  openedAt = performance.now()
  // A browser that reconnects by itself says where it was; one that is told to, here.
  source = new EventSource(root + '/stream' + (lastID ? `?since=${encodeURIComponent(lastID)}` : ''))
  source.addEventListener('snapshot', e => receive(e, takeSnapshot))
  source.addEventListener('change', e => receive(e, takeChange))
  source.addEventListener('heartbeat', e => receive(e, () => undefined))
  source.addEventListener('error', () => {
    opened.value = false
    monotonic.value = performance.now()
  })
}

/** follow opens the stream and keeps it open: the browser reconnects by itself
 * after a break, not after a refusal nor when a connection is silently dead. */
export function follow(): void {
  open()
  setInterval(() => {
    monotonic.value = performance.now()
    const tried = monotonic.value - openedAt
    const dead = source?.readyState === EventSource.CLOSED && tried > 3000
    const hung = (silence.value ?? Infinity) > 12 && tried > 12000
    if (dead || hung) open()
  }, 500)
}
