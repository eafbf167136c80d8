// Numbers, times and names as a person reads them. Times are UTC, as in the
// text of `explain` and in logs. A number never parts from its unit.

import type { Target } from './api'
import type { Fleet } from './live'

const pad = (n: number): string => String(n).padStart(2, '0')
const months = ['Jan', 'Feb', 'Mar', 'Apr', 'May', 'Jun', 'Jul', 'Aug', 'Sep', 'Oct', 'Nov', 'Dec']

export const clock = (ms: number): string => {
  const d = new Date(ms)
  return `${pad(d.getUTCHours())}:${pad(d.getUTCMinutes())}:${pad(d.getUTCSeconds())}`
}

/** moment adds the day where it is not today's. */
export function moment(ms: number, today: number): string {
  const d = new Date(ms)
  if (new Date(today).toISOString().slice(0, 10) === d.toISOString().slice(0, 10)) return clock(ms)
  return `${d.getUTCDate()} ${months[d.getUTCMonth()] ?? ''} ${clock(ms)}`
}

/** span is a length of time in its two largest units. */
export function span(seconds: number): string {
  const s = Math.max(0, Math.round(seconds))
  if (s < 120) return `${s}\u00a0s`
  const m = Math.floor(s / 60)
  if (m < 120) return m < 10 && s % 60 ? `${m}\u00a0min\u00a0${s % 60}\u00a0s` : `${m}\u00a0min`
  const h = Math.floor(m / 60)
  return h < 48 ? `${h}\u00a0h\u00a0${m % 60}\u00a0min` : `${Math.floor(h / 24)}\u00a0days`
}

/** duration reads Go's text of a duration, such as 1h2m3.5s. */
export function duration(text: string): string {
  const unit: Record<string, number> = { h: 3600, m: 60, s: 1, ms: 0.001, µs: 1e-6, ns: 1e-9 }
  let total = 0
  for (const [, n, u] of text.matchAll(/([\d.]+)(ms|µs|ns|h|m|s)/g)) total += Number(n) * (unit[u ?? ''] ?? 0)
  return total > 0 && total < 1 ? text : span(total)
}

const signs: Record<string, string> = { celsius: '°C', watts: 'W', seconds: 's', ratio: '', bytes: 'B', hertz: 'Hz', joules: 'J' }

/** fixed is a number with a minus sign and at most so many decimals. */
export function fixed(v: number, decimals: number): string {
  const s = v.toFixed(decimals)
  return (Number(s) === 0 ? s.replace('-', '') : s.replace('-', '−'))
}

/** quantity prints a value in base units with its unit; unknown is a dash. */
export function quantity(v: number | null | undefined, unit = ''): string {
  if (v === null || v === undefined) return '–'
  if (unit === 'ratio') return `${fixed(v * 100, 0)}\u00a0%`
  if (unit === 'bytes' && Math.abs(v) >= 1e6) return v >= 1e9 ? `${fixed(v / 2 ** 30, 1)}\u00a0GiB` : `${fixed(v / 2 ** 20, 0)}\u00a0MiB`
  if (unit === 'hertz' && Math.abs(v) >= 1e6) return `${fixed(v / 1e6, 0)}\u00a0MHz`
  const text = Math.abs(v) >= 100 || Number.isInteger(v) ? grouped(v) : fixed(v, 1)
  const sign = signs[unit] ?? unit
  return sign ? `${text}\u00a0${sign}` : text
}

/** grouped sets thin spaces between thousands from 10,000 on. */
export function grouped(v: number): string {
  const s = fixed(v, 0)
  return Math.abs(v) < 10000 ? s : s.replace(/\B(?=(\d{3})+$)/g, '\u2009')
}

export const celsius = (v: number | null | undefined): string => (v === null || v === undefined ? '–' : `${fixed(v, 1)}\u00a0°C`)

/** signalName is a metric's name as a person says it. */
export const signalName = (s: string): string =>
  s.replace(/^gpu_/, '').replace(/_(celsius|watts|ratio|hertz|bytes|seconds)(?=$|\{)/, '').replaceAll('_', ' ')

/** gpuName is node/index where the GPU is known, else its uuid. */
export function gpuName(f: Fleet | null, uuid: string): string {
  const i = f?.places.get(uuid)
  const g = i === undefined ? undefined : f?.gpus[i]
  return g ? `${f?.nodes[g.node]?.name ?? ''}/${g.index}` : uuid
}

export function targetName(f: Fleet | null, t: Target): string {
  if (t.pid) return `process ${t.pid} on ${t.node ?? ''}`
  if (t.uuid) {
    const name = f?.places.has(t.uuid) ? gpuName(f, t.uuid) : `${t.uuid}${t.node ? ` on ${t.node}` : ''}`
    return t.gi === undefined ? name : `${name} gi ${t.gi}`
  }
  return t.workload ?? t.node ?? ''
}

export const plural = (n: number, one: string, many = one + 's'): string => `${grouped(n)} ${n === 1 ? one : many}`
