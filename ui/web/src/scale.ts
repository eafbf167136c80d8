// What a cell's colour means: four signals, each in seven classes from cool to
// hot. The two ramps run from blue to orange with steady change of lightness,
// so that they read the same with any colour vision.

import { signal } from '@preact/signals'
import type { Row } from './live'

export type SignalName = 'headroom' | 'temperature' | 'power' | 'utilisation'

export interface Scale {
  name: SignalName
  label: string
  title: string
  unit: string
  /** value in the scale's own unit; null is unknown */
  of(r: Row): number | null
  /** bounds between the classes, hottest first */
  bounds: number[]
  /** whether a small value is hot */
  falling: boolean
  decimals: number
}

const warmest = (a: number | null, b: number | null): number | null => (a === null ? b : b === null ? a : Math.max(a, b))

export const scales: Scale[] = [
  { name: 'headroom', label: 'Headroom', title: 'Thermal headroom: distance to the temperature at which the device slows down', unit: '°C', of: r => r.headroom, bounds: [0, 3, 6, 10, 15, 25], falling: true, decimals: 1 },
  { name: 'temperature', label: 'Temperature', title: 'The warmer of core and memory', unit: '°C', of: r => warmest(r.core, r.memory), bounds: [90, 85, 80, 70, 60, 45], falling: false, decimals: 0 },
  { name: 'power', label: 'Power', title: 'Power drawn, in percent of the limit in force', unit: '% of limit', of: r => (r.power !== null && r.limit ? (100 * r.power) / r.limit : null), bounds: [98, 90, 75, 60, 40, 20], falling: false, decimals: 0 },
  { name: 'utilisation', label: 'Utilisation', title: 'Share of time in which a kernel ran', unit: '%', of: r => (r.busy === null ? null : 100 * r.busy), bounds: [95, 80, 60, 40, 20, 1], falling: false, decimals: 0 },
]

export const scale = signal<Scale>(scales[0] as Scale)

/** classes is how many colours a scale has; 0 is the hottest. */
export const classes = 7

export function classOf(s: Scale, v: number): number {
  let i = 0
  for (const b of s.bounds) {
    if (s.falling ? v <= b : v >= b) return i
    i++
  }
  return i
}

/** classLabel is the range of a class. */
export function classLabel(s: Scale, i: number): string {
  const hot = s.bounds[i - 1]
  const cool = s.bounds[i]
  if (hot === undefined) return s.falling ? `≤ ${cool}` : `≥ ${cool}`
  if (cool === undefined) return s.falling ? `> ${hot}` : `< ${hot}`
  return s.falling ? `${hot}–${cool}` : `${cool}–${hot}`
}

/** Kind is how a cell is drawn: by its value, or by why there is none. */
export type Kind = 'value' | 'lost' | 'hung' | 'unknown' | 'absent' | 'stale'

export const kinds: { kind: Kind; letter: string; label: string; title: string }[] = [
  { kind: 'lost', letter: 'L', label: 'lost', title: 'The device is off the bus' },
  { kind: 'hung', letter: 'H', label: 'hung', title: 'A driver call on the device does not return' },
  { kind: 'absent', letter: 'A', label: 'absent', title: 'Expected by inventory and not there' },
  { kind: 'stale', letter: 'S', label: 'stale', title: 'The values are old: the node is silent or late' },
  { kind: 'unknown', letter: '?', label: 'unknown', title: 'Nothing is known of the device, or not this value' },
]

export function kindOf(s: Scale, r: Row): Kind {
  if (r.state === 'lost' || r.state === 'hung' || r.state === 'absent') return r.state
  if (r.state === 'unknown') return 'unknown'
  if (!r.fresh) return 'stale'
  return s.of(r) === null ? 'unknown' : 'value'
}

/** slowing says that clocks are held down for heat. */
export const slowing = (r: Row): boolean => r.throttle.some(t => t === 'sw_thermal' || t === 'hw_thermal' || t === 'hw_slowdown')

/** A part of the fleet that the legend points out; the rest is dimmed. */
export type Highlight = { class: number } | { kind: Kind } | { mark: 'capped' | 'slowed' } | null
export const pinned = signal<Highlight>(null)
export const pointed = signal<Highlight>(null)

export function matches(h: Highlight, s: Scale, r: Row): boolean {
  if (h === null) return true
  if ('mark' in h) return r.fresh && (h.mark === 'capped' ? r.capped : slowing(r))
  const kind = kindOf(s, r)
  if ('kind' in h) return kind === h.kind
  const v = s.of(r)
  return kind === 'value' && v !== null && classOf(s, v) === h.class
}

export const sameHighlight = (a: Highlight, b: Highlight): boolean => JSON.stringify(a) === JSON.stringify(b)
