package cluster

import "github.com/evenkeel-gpu/evenkeel/telemetry"

// fleetIndex finds nodes and GPUs in a sorted list of nodes. It never changes
// and is shared by the Views whose nodes have the same GPUs in the same places.
type fleetIndex struct {
	nodes map[string]int32
	gpus  map[string]gpuAt
	// claims lists, for a UUID that several live nodes report, those nodes.
	claims map[string][]string
}

type gpuAt struct{ node, gpu int32 }

func indexFleet(nodes []*Node) *fleetIndex {
	count := 0
	for _, n := range nodes {
		count += len(n.GPUs)
	}
	x := &fleetIndex{nodes: make(map[string]int32, len(nodes)), gpus: make(map[string]gpuAt, count)}
	for i, n := range nodes {
		x.nodes[n.Name] = int32(i)
		for j, g := range n.GPUs {
			at := gpuAt{int32(i), int32(j)}
			first, twice := x.gpus[g.UUID]
			if !twice {
				x.gpus[g.UUID] = at
				continue
			}
			holder := nodes[first.node]
			held, here := present(holder, holder.GPUs[first.gpu]), present(n, g)
			if here && !held {
				x.gpus[g.UUID] = at
			}
			if here && held {
				x.claim(g.UUID, holder.Name, n.Name)
			}
		}
	}
	return x
}

// present says whether a node has the device now; a device that moved is
// absent on the node it came from.
func present(n *Node, g *GPU) bool { return n.State == NodeUp && g.State != GPUAbsent }

func (x *fleetIndex) claim(uuid, first, next string) {
	if x.claims == nil {
		x.claims = map[string][]string{}
	}
	if len(x.claims[uuid]) == 0 {
		x.claims[uuid] = []string{first}
	}
	x.claims[uuid] = append(x.claims[uuid], next)
}

// loadIndex finds workloads in a sorted list. It never changes and is shared by
// the Views whose workloads hold the same GPUs.
type loadIndex struct {
	refs   map[telemetry.WorkloadRef]int32
	onGPU  map[string][]int32
	onNode map[string][]int32
}

func indexLoads(workloads []*Workload) *loadIndex {
	x := &loadIndex{
		refs:   make(map[telemetry.WorkloadRef]int32, len(workloads)),
		onGPU:  make(map[string][]int32, len(workloads)),
		onNode: make(map[string][]int32),
	}
	for i, w := range workloads {
		x.refs[w.Ref] = int32(i)
		for _, g := range w.GPUs {
			x.onGPU[g.UUID] = append(x.onGPU[g.UUID], int32(i))
			if on := x.onNode[g.Node]; len(on) == 0 || on[len(on)-1] != int32(i) {
				x.onNode[g.Node] = append(on, int32(i))
			}
		}
	}
	return x
}
