package judge_test

import (
	"math"
	"math/rand/v2"
	"slices"
)

// interleavedStep is one thing that happens in an interleaving.
type interleavedStep int

const (
	stepPass       interleavedStep = iota // broker time goes on
	stepRead                              // a router reads and routes some records
	stepCommit                            // a router commits
	stepAbort                             // a router aborts
	stepObserve                           // a router looks how far it has read
	stepCrash                             // a router dies, and its transaction stays open
	stepExpire                            // the transaction of a dead router is aborted
	stepRevoke                            // a router gives up an input
	stepAssign                            // a router gets an input that none has
	stepJudge                             // a task judges some records
	stepTaskCommit                        // a task commits
	stepTaskAbort                         // a task aborts
	stepRestart                           // a task restarts
	stepRebuild                           // a task restarts without its local state
	stepPause                             // a router, an input or a task rests
	stepKinds
)

// often has the weight of each step, before an interleaving makes some steps rare or frequent.
var often = [stepKinds]float64{
	stepPass: 6, stepRead: 12, stepCommit: 8, stepAbort: 0.6, stepObserve: 8, stepCrash: 0.3, stepExpire: 1, stepRevoke: 0.5, stepAssign: 3,
	stepJudge: 12, stepTaskCommit: 8, stepTaskAbort: 0.6, stepRestart: 0.3, stepRebuild: 0.4, stepPause: 0.6,
}

// interleavedPlan has the choices by which an interleaving draws its steps.
type interleavedPlan struct {
	steps    int
	weights  [stepKinds]float64
	inputs   []float64 // speed of reading, by input
	batch    int       // most records in one read
	pass     int64     // usual time that passes
	untilFor []int     // by router, input and task: the number of the step until which it rests
	done     int       // steps so far
	reopens  bool      // a task may restart from its files, which takes milliseconds
}

func (x *interleaving) drawPlan() {
	p := &x.plan
	p.steps = 200 + x.rng.IntN(900)
	factor := func(spread float64) float64 { return math.Exp((x.rng.Float64()*2 - 1) * spread) }
	for kind, weight := range often {
		p.weights[kind] = weight * factor(1.5)
	}
	for range x.logs.inputs {
		p.inputs = append(p.inputs, factor(3))
	}
	p.batch = pickOne(x.rng, 1, 5, 30)
	p.pass = pickOne(x.rng, 0, 20, 2000, x.logs.window/10, (x.logs.ended-worldBegin)/int64(p.steps)*6+1)
	p.untilFor = make([]int, len(x.routers)+len(x.logs.inputs)+len(x.tasks))
	p.reopens = x.rng.IntN(10) == 0
}

// rests reports whether the n-th of all routers, inputs and tasks rests.
func (p *interleavedPlan) rests(n int) bool { return p.done < p.untilFor[n] }

// step draws what happens next.
func (x *interleaving) step() {
	x.plan.done++
	kind, left := interleavedStep(0), x.rng.Float64()*sumOf(x.plan.weights[:])
	for ; kind < stepKinds-1; kind++ {
		if left -= x.plan.weights[kind]; left < 0 {
			break
		}
	}
	n := x.rng.IntN(len(x.routers))
	switch kind {
	case stepPass:
		x.pass()
	case stepExpire:
		x.expire()
	case stepAssign:
		x.assign(n)
	case stepJudge, stepTaskCommit, stepTaskAbort, stepRestart, stepRebuild:
		x.stepTask(kind)
	case stepPause:
		x.plan.untilFor[x.rng.IntN(len(x.plan.untilFor))] = x.plan.done + x.rng.IntN(x.plan.steps/2)
	case stepRead, stepCommit, stepAbort, stepObserve, stepCrash, stepRevoke, stepKinds:
		if !x.plan.rests(n) || kind == stepCrash {
			x.stepRouter(kind, n)
		}
	}
}

func sumOf(weights []float64) (sum float64) {
	for _, w := range weights {
		sum += w
	}
	return sum
}

// pass lets broker time go on, sometimes by a long time.
func (x *interleaving) pass() {
	by := x.plan.pass
	if by > 0 {
		by = x.rng.Int64N(by + 1)
	}
	switch x.rng.IntN(60) {
	case 0:
		by += x.rng.Int64N(x.logs.window)
	case 1:
		by += x.rng.Int64N(max(1, (x.logs.ended-worldBegin)/2))
	case 2:
		by += x.rng.Int64N(3000)
	}
	x.passTo(x.now + by)
}

// expire aborts the transaction of a dead router, so that its inputs wait for an owner.
func (x *interleaving) expire() {
	if len(x.crashed) == 0 {
		return
	}
	n := x.rng.IntN(len(x.crashed))
	x.crashed[n].ended, x.crashed[n].aborted = true, true
	x.crashed = slices.Delete(x.crashed, n, n+1)
}

// assign gives a router an input that no router has.
func (x *interleaving) assign(n int) {
	input := x.rng.IntN(len(x.owner))
	waits := slices.ContainsFunc(x.crashed, func(c crashedTransaction) bool { return slices.Contains(c.inputs, input) })
	if x.owner[input] == nil && !waits && x.logs.inputs[input].created <= x.now {
		x.routers[n].assign(input)
	}
}

func (x *interleaving) stepRouter(kind interleavedStep, n int) {
	r := x.routers[n]
	owned := r.owned()
	switch kind {
	case stepRead:
		if input := x.drawInput(owned); input >= 0 {
			r.read(input, 1+x.rng.Int64N(int64(x.plan.batch)))
		}
	case stepCommit:
		r.commit(x.rng.IntN(4) > 0)
	case stepAbort:
		r.abort()
	case stepObserve:
		r.observe()
	case stepRevoke:
		if len(owned) == 0 {
			return
		}
		if x.rng.IntN(3) == 0 {
			r.abort()
		}
		r.commit(x.rng.IntN(2) == 0)
		r.revoke(owned[x.rng.IntN(len(owned))])
	case stepCrash:
		if r.open != nil {
			x.crashed = append(x.crashed, crashedTransaction{r.open, owned})
		}
		for _, input := range owned {
			x.owner[input] = nil
		}
		x.routers[n] = x.newRouter(n)
	}
}

// owned returns the inputs that the router has.
func (r *interleavedRouter) owned() (inputs []int) {
	for input, owner := range r.x.owner {
		if owner == r {
			inputs = append(inputs, input)
		}
	}
	return inputs
}

// drawInput draws one of the inputs by their speeds. It returns -1 if none is to be read now.
func (x *interleaving) drawInput(inputs []int) int {
	inputs = slices.DeleteFunc(inputs, func(input int) bool { return x.plan.rests(len(x.routers) + input) })
	sum := 0.0
	for _, input := range inputs {
		sum += x.plan.inputs[input]
	}
	left := x.rng.Float64() * sum
	for _, input := range inputs {
		if left -= x.plan.inputs[input]; left <= 0 {
			return input
		}
	}
	return -1
}

func (x *interleaving) stepTask(kind interleavedStep) {
	n := x.rng.IntN(len(x.tasks))
	k := x.tasks[n]
	switch kind {
	case stepJudge:
		if !x.plan.rests(len(x.routers) + len(x.logs.inputs) + n) {
			k.judge(1 + x.rng.IntN(2*x.plan.batch))
		}
	case stepTaskCommit:
		k.commit()
	case stepTaskAbort:
		k.abort()
	case stepRestart:
		if x.plan.reopens {
			k.reopen()
			return
		}
		k.restart()
	case stepRebuild:
		k.rebuild()
	}
}

// drain runs everything to the end of all logs, with further steps in between.
func (x *interleaving) drain() {
	for x.now < x.logs.ended || x.unread() {
		x.passTo(max(x.now, min(x.logs.ended, x.now+1+x.rng.Int64N(2*x.logs.window))))
		for range x.rng.IntN(20) {
			x.step()
		}
		x.expireAll()
		for input := range x.owner {
			if x.owner[input] == nil && x.logs.inputs[input].created <= x.now {
				x.routers[x.rng.IntN(len(x.routers))].assign(input)
			}
		}
		for _, n := range x.rng.Perm(len(x.routers)) {
			r := x.routers[n]
			for _, input := range shuffled(x.rng, r.owned()) {
				r.read(input, 1+x.rng.Int64N(20))
			}
			if x.rng.IntN(2) == 0 {
				r.observe()
			}
			r.commit(true)
		}
		for _, k := range x.tasks {
			k.judge(x.rng.IntN(40))
		}
	}
	x.expireAll()
	for _, r := range x.routers {
		r.commit(true)
	}
	for _, k := range x.tasks {
		k.judge(math.MaxInt)
		k.commit()
	}
}

// expireAll aborts the transactions of all dead routers.
func (x *interleaving) expireAll() {
	for len(x.crashed) > 0 {
		x.expire()
	}
}

// unread reports whether a router has something to read or to commit.
func (x *interleaving) unread() bool {
	for input := range x.logs.inputs {
		if x.read[input] < int64(len(x.logs.inputs[input].events)) {
			return true
		}
	}
	return false
}

func shuffled(rng *rand.Rand, all []int) []int {
	rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all
}
