// Asks for something, again where what it depends on changes, and keeps the
// last answer while the next is on its way.

import { useEffect, useState } from 'preact/hooks'
import { reason } from './api'

export interface Fetched<T> { data: T | null; error: string | null }

/** useFetched asks when a dependency changes, and every `every` milliseconds if given. */
export function useFetched<T>(ask: (signal: AbortSignal) => Promise<T>, on: unknown[], every = 0): Fetched<T> {
  const [state, set] = useState<Fetched<T>>({ data: null, error: null })
  useEffect(() => {
    const abort = new AbortController()
    let timer = 0
    const run = async (): Promise<void> => {
      try {
        const data = await ask(abort.signal)
        if (!abort.signal.aborted) set({ data, error: null })
      } catch (e) {
        if (!abort.signal.aborted) set(old => ({ data: old.data, error: reason(e) }))
      }
      if (every && !abort.signal.aborted) timer = setTimeout(() => void run(), every)
    }
    void run()
    return () => {
      abort.abort()
      clearTimeout(timer)
    }
  }, on)
  return state
}
