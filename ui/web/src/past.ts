// A GPU's past: its last ten minutes are asked for whole once and then only
// for what is new; what is longer is asked for again now and then.

import { signal } from '@preact/signals'
import { useEffect, useState } from 'preact/hooks'
import { getJSON, reason } from './api'
import type { History, Instant } from './api'
import { link } from './live'

export interface Range { label: string; ask: string; seconds: number }

export const ranges: [Range, ...Range[]] = [
  { label: '10 min', ask: '', seconds: 600 }, { label: '1 h', ask: '1h', seconds: 3600 }, { label: '6 h', ask: '6h', seconds: 21600 }, { label: '24 h', ask: '24h', seconds: 86400 },
]

/** range is the one chosen, for all GPUs. */
export const range = signal<Range>(ranges[0])

export interface Past { points: Instant[]; step: number; loaded: boolean; error: string | null; note: string | null }

const nothing: Past = { points: [], step: 0, loaded: false, error: null, note: null }

export function usePast(uuid: string | undefined, of: Range = ranges[0]): Past {
  const [past, set] = useState<Past>(nothing)
  useEffect(() => {
    set(nothing)
    if (!uuid) return
    const abort = new AbortController()
    let timer = 0
    let points: Instant[] = []
    const path = `/gpus/${encodeURIComponent(uuid)}/history`
    const more = async (): Promise<void> => {
      try {
        const last = of.ask ? undefined : points.at(-1)?.time
        const got = await getJSON<History>(path + (of.ask ? `?from=${of.ask}` : last ? `?from=${encodeURIComponent(last)}` : ''), abort.signal)
        if (of.ask) points = got.items
        else if (got.items.length) points = [...points, ...got.items].slice(-4000)
        if (!abort.signal.aborted) set({ points, step: got.step_seconds ?? 0, loaded: true, error: null, note: got.note ?? null })
      } catch (e) {
        if (!abort.signal.aborted) set(old => ({ ...old, points, loaded: true, error: link.peek() === 'live' ? reason(e) : null }))
      }
      if (!abort.signal.aborted) timer = setTimeout(() => void more(), of.ask ? 15000 : 2000)
    }
    void more()
    return () => {
      abort.abort()
      clearTimeout(timer)
    }
  }, [uuid, of])
  return past
}
