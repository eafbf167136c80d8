// Where a decision stands, as a word with a sign of its own.

import type { DecisionLine, Outcome } from './api'

interface Look { sign: string; tone: 'open' | 'good' | 'bad' | 'past' | 'wait'; text?: string }

const looks: Record<Outcome, Look> = {
  recommended: { sign: '○', tone: 'wait' },
  awaiting_approval: { sign: '○', tone: 'wait', text: 'awaiting approval' },
  intended: { sign: '◔', tone: 'open' },
  acting: { sign: '◑', tone: 'open' },
  acted: { sign: '◕', tone: 'open' },
  verified: { sign: '✓', tone: 'good' },
  ineffective: { sign: '✕', tone: 'bad' },
  undone: { sign: '↩', tone: 'past' },
  escalated: { sign: '▲', tone: 'bad' },
  eased: { sign: '▽', tone: 'past' },
  refused: { sign: '–', tone: 'past' },
  failed: { sign: '✕', tone: 'bad' },
  expired: { sign: '–', tone: 'past' },
  rejected: { sign: '–', tone: 'past' },
}

const lookOf = (o: string): Look => (looks as Record<string, Look | undefined>)[o] ?? { sign: '·', tone: 'past' }

export const outcomeText = (o: string): string => lookOf(o).text ?? o

/** isOpen says whether the decision still holds something. */
export const isOpen = (d: DecisionLine): boolean => !d.ended && ['intended', 'acting', 'acted', 'verified', 'ineffective'].includes(d.outcome)

export function Badge({ outcome }: { outcome: string }) {
  const look = lookOf(outcome)
  return <span class={`badge ${look.tone}`}><span aria-hidden="true">{look.sign} </span>{outcomeText(outcome)}</span>
}
