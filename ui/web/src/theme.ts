// Colours for what is drawn on a canvas. They come from the style sheet, so
// that there is one place for them; a change of the system's theme bumps the
// signal.

import { signal } from '@preact/signals'
import { classes } from './scale'
import type { Kind } from './scale'

export interface Theme {
  background: string
  text: string
  dim: string
  line: string
  accent: string
  ramp: string[]
  inks: string[]
  state: string
  stateInk: string
  series: string[]
  mark: string
  aim: string
  act: string
}

function read(): Theme {
  const css = getComputedStyle(document.documentElement)
  const get = (name: string): string => css.getPropertyValue(name).trim()
  const numbered = (name: string, n: number): string[] => Array.from({ length: n }, (_, i) => get(`--${name}-${i}`))
  return {
    background: get('--panel'), text: get('--text'), dim: get('--dim'), line: get('--line'), accent: get('--accent'),
    ramp: numbered('heat', classes), inks: numbered('ink', classes), state: get('--state'), stateInk: get('--state-ink'),
    series: numbered('series', 3), mark: get('--mark'), aim: get('--aim'), act: get('--act'),
  }
}

export const theme = signal<Theme>(read())

for (const query of ['(prefers-color-scheme: dark)', '(prefers-contrast: more)'])
  matchMedia(query).addEventListener('change', () => {
    theme.value = read()
  })

/** patternTile draws the hatching of a state, each with its own direction. */
export function patternTile(kind: Kind, t: Theme): HTMLCanvasElement {
  const tile = document.createElement('canvas')
  tile.width = tile.height = 6
  const c = tile.getContext('2d')
  if (!c) return tile
  c.fillStyle = t.state
  c.fillRect(0, 0, 6, 6)
  c.strokeStyle = t.stateInk
  c.lineWidth = 1
  c.beginPath()
  const line = (x1: number, y1: number, x2: number, y2: number): void => {
    c.moveTo(x1, y1)
    c.lineTo(x2, y2)
  }
  if (kind === 'stale' || kind === 'lost')
    for (const d of [-6, 0, 6]) line(d, 6, d + 6, 0)
  if (kind === 'lost')
    for (const d of [-6, 0, 6]) line(d, 0, d + 6, 6)
  if (kind === 'hung') for (const y of [1.5, 4.5]) line(0, y, 6, y)
  if (kind === 'absent') for (const x of [1.5, 4.5]) line(x, 0, x, 6)
  c.stroke()
  if (kind === 'unknown') {
    c.fillStyle = t.stateInk
    c.fillRect(1, 1, 1.4, 1.4)
    c.fillRect(4, 4, 1.4, 1.4)
  }
  return tile
}
