// The API's types, as far as the page uses them, and how it asks.

export const root = '/api/evenkeel/v1'

export interface Target {
  node?: string
  uuid?: string
  gi?: number
  pid?: number
  workload?: string
}

export type Outcome =
  | 'recommended' | 'awaiting_approval' | 'intended' | 'acting' | 'acted' | 'verified' | 'ineffective'
  | 'undone' | 'escalated' | 'eased' | 'refused' | 'failed' | 'expired' | 'rejected'

export interface DecisionLine {
  id: string
  time: string
  policy: string
  mode: string
  act: string
  class: string
  target: Target
  outcome: Outcome
  why: string
  ended?: string
}

export interface Evidence { signal: string; value: number; unit?: string; age_ms: number; quality: string; note?: string }

export interface Violation {
  target: Target
  signal: string
  value: number
  unit?: string
  mark: number
  aim: number
  seen: number
  of: number
  needed: number
  agrees?: string
  where?: string
  slope_per_second?: number
  seconds_to_limit?: number
  evidence?: Evidence[]
}

export interface Candidate { workload: string; owner?: string; name?: string; priority: number; share: number; note?: string }

export interface Refusal { reason: string; target: Target; act?: string; have?: number; need?: number; unit?: string; until?: string; text: string }

export interface Alternative {
  act: string
  summary: string
  gain_gpu_seconds: number
  cost_gpu_seconds: number
  risk_gpu_seconds: number
  net_gpu_seconds: number
  chosen?: boolean
  refusals?: Refusal[]
}

export interface Effect { signal: string; unit?: string; before: number; after: number; at?: string; within?: string; note?: string }

export interface Receipt {
  result: string
  why?: string
  detail?: string
  ended?: string
  undone?: string
  before?: Record<string, number>
  after?: Record<string, number>
  lease_until?: string
}

export interface StepRecord { step: { id: string; kind: string; backend: string; target: Target; params: { signal?: string; grace?: string; message?: string } }; receipt?: Receipt }

export interface Decision extends DecisionLine {
  policy_revision?: string
  view_time: string
  coverage: { expected: number; fresh: number; ratio: number }
  first_seen?: string
  last_seen?: string
  violations?: Violation[]
  candidates?: Candidate[]
  alternatives?: Alternative[]
  refusals?: Refusal[]
  refusal_counts?: Record<string, number>
  chosen?: { summary: string; lease?: string; gpus?: string[] }
  predicted?: Effect
  steps?: StepRecord[]
  observed?: Effect
  verify_by?: string
  ending?: string
  approval?: { by: string; at: string; verdict: string }
}

export interface WorkloadName { ref: string; owner?: string }

export interface Reading { metric: string; labels?: Record<string, string>; value: number; unit?: string; age_seconds?: number; quality: string }

export interface Health { class: string; score: number; reason?: string; since?: string; evidence?: string[] }
export interface Idle { since?: string; cause: string; evidence?: string[] }
export interface Contention { kind: string; ratio: number; with?: string[]; since?: string; evidence?: string[] }
export interface Fabric { state: string; links_up: number; links_expected: number; saturation_ratio?: number; errors_per_second?: number; since?: string; evidence?: string[] }
export interface Member { id: string; kind: string; name?: string; gi?: number; workload?: string; owner?: string }
export interface HostVerdict { name: string; holds: boolean; value?: number; evidence?: string; since?: string }

/** NodeDetail is what the page uses of a node. */
export interface NodeDetail { name: string; state: string; doubt?: string; gpus_expected: number; gpus_fresh: number; inlet_celsius?: number; host: HostVerdict[] }

export interface Alert {
  name: string
  state: 'firing' | 'pending'
  severity?: string
  since: string
  summary?: string
  runbook_url?: string
  labels: Record<string, string>
}

export interface GPUDetail {
  uuid: string
  node: string
  index: number
  pci?: string
  model?: string
  arch?: string
  driver?: string
  row?: string
  rack?: string
  state: string
  fresh: boolean
  sampled_at?: string
  age_seconds?: number
  doubt?: string
  hung_call?: string
  hung_seconds?: number
  headroom_celsius?: number
  slope_celsius_per_second?: number
  seconds_to_slowdown?: number
  temperature_core_celsius?: number
  temperature_memory_celsius?: number
  power_watts?: number
  power_limit_watts?: number
  power_limit_min_watts?: number
  power_limit_default_watts?: number
  power_limit_max_watts?: number
  utilization_ratio?: number
  sm_clock_hertz?: number
  memory_used_bytes?: number
  memory_total_bytes?: number
  throttle: string[]
  capped: boolean
  held_by?: string[]
  thermal_resistance_celsius_per_watt?: number
  thermal_time_constant_seconds?: number
  health?: Health
  idle?: Idle
  contention?: Contention
  fabric?: Fabric
  workloads: WorkloadName[]
  members: Member[]
  readings: Reading[]
}

export interface Instant {
  time: string
  headroom_celsius?: number
  temperature_core_celsius?: number
  temperature_memory_celsius?: number
  power_watts?: number
  power_limit_watts?: number
}

export interface History { step_seconds?: number; note?: string; items: Instant[] }

export interface Summary {
  view_time: string
  nodes: number
  nodes_up: number
  gpus: number
  coverage: { expected: number; fresh: number; ratio: number }
  states: Record<string, number>
  capped: number
  slowed: number
  power_watts?: number
  hottest?: { uuid: string; node: string; index: number; headroom_celsius?: number }
  workloads: number
  decisions: number
  decisions_open: number
  paused?: 'disruptive' | 'all'
  paused_by?: string
  breakers_open?: { domain?: string; reason: string }[]
  past: 'memory' | 'store'
  alerts?: { firing: number; critical: number; pending: number }
  version?: string
}

export interface NodePlace { name: string; row?: string; rack?: string; state: string; gpus_expected: number; driver_fault?: string }
export interface GPUPlace { uuid: string; node: number; index: number; model?: string }

export interface Update {
  id: string
  time: string
  summary?: Summary
  columns?: string[]
  states?: string[]
  throttle_reasons?: string[]
  nodes?: NodePlace[]
  gpus?: GPUPlace[]
  rows?: (number | null)[][]
  placements?: { gpu: number; workloads: WorkloadName[] }[]
  decisions?: DecisionLine[]
  decisions_gone?: string[]
}

interface ErrorBody { error?: { code?: string; message?: string } }

async function ask(path: string, signal?: AbortSignal): Promise<Response> {
  const response = await fetch(root + path, signal ? { signal } : {})
  if (response.ok) return response
  let message = `${response.status} ${response.statusText}`
  try {
    const body = (await response.json()) as ErrorBody
    message = body.error?.message ?? message
  } catch {
    // Not ours, such as a proxy's: the status is all there is to say.
  }
  throw new Error(message)
}

/** getJSON asks for what the path's schema describes. */
export async function getJSON<T>(path: string, signal?: AbortSignal): Promise<T> {
  return (await (await ask(path, signal)).json()) as T
}

export async function getText(path: string, signal?: AbortSignal): Promise<string> {
  return (await ask(path, signal)).text()
}

/** refPath keeps a workload reference's slashes and escapes the rest. */
export const refPath = (ref: string): string => ref.split('/').map(encodeURIComponent).join('/')

/** reason words an error for a person. */
export const reason = (e: unknown): string => (e instanceof Error ? e.message : String(e))
