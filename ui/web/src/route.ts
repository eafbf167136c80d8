// What is selected is in the URL's hash, so that it can be sent to somebody.

import { signal } from '@preact/signals'

export type Route = { at: 'decisions' } | { at: 'nothing' } | { at: 'decision' | 'gpu' | 'workload'; id: string }

function read(): Route {
  const [, at, ...rest] = location.hash.split('/')
  let id = rest.join('/')
  try {
    id = decodeURIComponent(id)
  } catch {
    // A hash that was not made here; taken as it is.
  }
  if ((at === 'decision' || at === 'gpu' || at === 'workload') && id !== '') return { at, id }
  return at === 'nothing' ? { at } : { at: 'decisions' }
}

export const route = signal<Route>(read())

export const hashOf = (r: Route): string => ('id' in r ? `#/${r.at}/${encodeURIComponent(r.id)}` : r.at === 'nothing' ? '#/nothing' : '#/')

export function go(r: Route): void {
  location.hash = hashOf(r)
}

addEventListener('hashchange', () => {
  route.value = read()
})
