// A GPU's past: asked for whole once, then only what is new.

import { useEffect, useState } from 'preact/hooks'
import { getJSON, reason } from './api'
import type { History, Instant } from './api'
import { link } from './live'

export interface Past { points: Instant[]; loaded: boolean; error: string | null }

export function usePast(uuid: string | undefined): Past {
  const [past, set] = useState<Past>({ points: [], loaded: false, error: null })
  useEffect(() => {
    set({ points: [], loaded: false, error: null })
    if (!uuid) return
    const abort = new AbortController()
    let timer = 0
    let points: Instant[] = []
    const more = async (): Promise<void> => {
      try {
        const last = points.at(-1)?.time
        const got = await getJSON<History>(`/gpus/${encodeURIComponent(uuid)}/history${last ? `?since=${encodeURIComponent(last)}` : ''}`, abort.signal)
        if (got.items.length) points = [...points, ...got.items].slice(-4000)
        if (!abort.signal.aborted) set({ points, loaded: true, error: null })
      } catch (e) {
        if (!abort.signal.aborted) set({ points, loaded: true, error: link.peek() === 'live' ? reason(e) : null })
      }
      if (!abort.signal.aborted) timer = setTimeout(() => void more(), 2000)
    }
    void more()
    return () => {
      abort.abort()
      clearTimeout(timer)
    }
  }, [uuid])
  return past
}
