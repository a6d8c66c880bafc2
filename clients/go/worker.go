package winch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"os/signal"
	"runtime/debug"
	"sync"
	"syscall"
	"time"
)

const (
	poll = 5 * time.Second
	// How long handlers that were asked to stop have until their job, or the session, ends without them.
	lastMoment = time.Second
)

// WorkerOptions of a worker. The zero value of each field but Queues is the default.
type WorkerOptions struct {
	// Queues that it serves, the first one first.
	Queues []string
	// Slots is how many jobs it runs at once; 4 by default.
	Slots int
	// Lease is after how long without a heartbeat its jobs go to others; 30 s by default.
	Lease time.Duration
	// Grace is how long running jobs get when it stops, then they go back; 30 s by default.
	Grace time.Duration
	// Burst ends the worker when its queues are empty.
	Burst bool
	// Name is shown to operators; by default host and process.
	Name string
	// Release is the version of your code, shown to operators.
	Release string
	// Around is called for each job, and calls next: for metrics, spans of a tracer, or logs.
	Around func(ctx context.Context, job *Job, next func(ctx context.Context) error) error
}

type runner func(ctx context.Context, job *Job) (any, error)

// Worker claims jobs and runs them, under one session for its life.
type Worker struct {
	client    *Client
	options   WorkerOptions
	handlers  map[string]runner
	contracts []contract
	notes     *notes
	ends      *ends
	session   session

	life  context.Context // until its last request
	over  context.CancelFunc
	stops chan struct{} // closed: it claims nothing more

	mutex    sync.Mutex
	isRun    bool
	isQuiet  bool
	isSooner chan struct{} // closed: grace was changed
	grace    time.Duration
	cut      context.CancelFunc // ends the claim that waits
	claiming map[string]bool
	running  map[ref]*Job
	busy     int
	changed  chan struct{}
	answers  []orderAnswer
	met      map[string]bool
}

// NewWorker makes a worker; register handlers, then call Run.
func (c *Client) NewWorker(options WorkerOptions) *Worker {
	if options.Slots <= 0 {
		options.Slots = 4
	}
	options.Lease = or(options.Lease, 30*time.Second)
	options.Grace = or(options.Grace, 30*time.Second)
	if options.Name == "" {
		host, _ := os.Hostname()
		options.Name = fmt.Sprintf("%s-%d", host, os.Getpid())
	}
	worker := &Worker{
		client:   c,
		options:  options,
		handlers: map[string]runner{},
		stops:    make(chan struct{}),
		isSooner: make(chan struct{}),
		grace:    options.Grace,
		claiming: map[string]bool{},
		running:  map[ref]*Job{},
		changed:  make(chan struct{}),
		met:      map[string]bool{},
	}
	worker.life, worker.over = context.WithCancel(context.Background())
	worker.notes = &notes{worker: worker, waiting: make(chan *note)}
	worker.ends = newEnds(worker)
	worker.session.worker = worker
	return worker
}

// String names the worker; nothing it prints has the key of its session.
func (w *Worker) String() string { return "winch.Worker(" + w.options.Name + ")" }

// GoString is String.
func (w *Worker) GoString() string { return w.String() }

func (w *Worker) register(task string, run runner) {
	if _, known := w.handlers[task]; known {
		panic("winch: task " + task + " has two handlers")
	}
	w.handlers[task] = run
}

// Stop has the worker claim nothing more; Run returns when running jobs have ended.
func (w *Worker) Stop() {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	select {
	case <-w.stops:
	default:
		close(w.stops)
	}
	if w.cut != nil {
		w.cut()
	}
}

func (w *Worker) isStopping() bool {
	select {
	case <-w.stops:
		return true
	default:
		return false
	}
}

// Run works until the context ends, until Stop, or until an operator stops the worker; then running jobs
// get their grace, and what has not ended goes back to its queue. A worker runs once.
//
// The error is not nil when the worker could not begin.
func (w *Worker) Run(ctx context.Context) error {
	w.mutex.Lock()
	was := w.isRun
	w.isRun = true
	w.mutex.Unlock()
	switch {
	case was:
		return errors.New("winch: a worker runs once; make a new one")
	case len(w.handlers) == 0:
		return errors.New("winch: the worker has no task; call Task.Handle before Run")
	case len(w.options.Queues) == 0:
		return errors.New("winch: the worker serves no queue; name them in WorkerOptions.Queues")
	}
	defer w.over()
	if err := w.session.begin(ctx); err != nil {
		return err
	}
	ended := make(chan struct{})
	defer close(ended)
	go func() {
		select {
		case <-ctx.Done():
			w.Stop()
		case <-ended:
		}
	}()
	loops := []func(context.Context){w.session.beat, w.ends.run, w.notes.run}
	var waits sync.WaitGroup
	for _, loop := range loops {
		loop := loop
		waits.Add(1)
		go func() {
			defer waits.Done()
			loop(w.life)
		}()
	}
	w.claimUntilStopped()
	w.drain()
	w.session.lastBeat()
	w.over()
	waits.Wait()
	w.session.end()
	return nil
}

// RunUntilSignal is Run until SIGTERM or SIGINT. A second signal ends the process at once.
func (w *Worker) RunUntilSignal() error {
	ctx, again := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer again()
	go func() {
		<-ctx.Done()
		again()
	}()
	return w.Run(ctx)
}

// drain waits for running jobs, as long as their grace lasts.
func (w *Worker) drain() {
	began := time.Now()
	for {
		w.mutex.Lock()
		left, count, changed, sooner := w.grace-time.Since(began), len(w.running), w.changed, w.isSooner
		w.mutex.Unlock()
		if count == 0 {
			return
		}
		if left <= 0 {
			break
		}
		timer := time.NewTimer(left)
		select {
		case <-changed:
		case <-sooner:
		case <-timer.C:
		}
		timer.Stop()
	}
	for _, job := range w.jobs() {
		job.stop(Stopping)
	}
	until := time.Now().Add(lastMoment)
	for time.Now().Before(until) && len(w.jobs()) > 0 {
		time.Sleep(10 * time.Millisecond)
	}
}

func (w *Worker) jobs() []*Job {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	found := make([]*Job, 0, len(w.running))
	for _, job := range w.running {
		found = append(found, job)
	}
	return found
}

// tell wakes whatever waits for a change of running jobs, slots or orders. The mutex is held.
func (w *Worker) tell() {
	close(w.changed)
	w.changed = make(chan struct{})
}

// -- claims -----------------------------------------------------------------------------------------

func (w *Worker) claimUntilStopped() {
	var pauses backoff
	for {
		free := w.waitForSlots()
		if free == 0 {
			return
		}
		wait := poll
		if w.options.Burst {
			wait = 0
		}
		found, err := w.claim(free, wait)
		if err != nil {
			if w.isStopping() {
				return
			}
			if !w.quiet() {
				w.client.logf("winch: claim: %v", err)
				pause := pauses.next() + firstPause
				var problem *Error
				if errors.As(err, &problem) {
					pause += problem.RetryAfter
				}
				w.pause(pause)
			}
			continue
		}
		pauses.reset()
		if w.options.Burst && found == 0 {
			if len(w.jobs()) == 0 {
				return
			}
			w.pause(firstPause)
		}
	}
}

func (w *Worker) quiet() bool {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	return w.isQuiet
}

// pause waits, or until it stops.
func (w *Worker) pause(pause time.Duration) {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-w.stops:
	case <-timer.C:
	}
}

// waitForSlots waits until there are free slots, and it is not quiet; 0: it stops.
func (w *Worker) waitForSlots() int {
	for {
		w.mutex.Lock()
		free, isQuiet, changed := w.options.Slots-w.busy, w.isQuiet, w.changed
		w.mutex.Unlock()
		if w.isStopping() {
			return 0
		}
		if free > 0 && !isQuiet {
			if free > mostInBatch {
				return mostInBatch
			}
			return free
		}
		select {
		case <-changed:
		case <-w.stops:
		}
	}
}

// claim takes jobs and starts them. It is never repeated: what a lost reply took, a heartbeat lists, and
// then it goes back.
func (w *Worker) claim(most int, wait time.Duration) (int, error) {
	token := newID()
	ctx, cut := context.WithCancel(w.life)
	defer cut()
	w.mutex.Lock()
	if w.isStopping() || w.isQuiet {
		w.mutex.Unlock()
		return 0, context.Canceled
	}
	w.claiming[token], w.cut = true, cut
	w.mutex.Unlock()
	var answer struct{ Jobs []claimed }
	body := map[string]any{"max": most, "claim": token, "wait": "0s"}
	if wait > 0 {
		body["wait"] = duration(wait)
	}
	key := w.session.current()
	err := w.session.ask(ctx, key, "/claim", body, &answer, call{wait: wait})
	w.mutex.Lock()
	delete(w.claiming, token)
	w.cut = nil
	if err == nil && key != w.session.current() {
		answer.Jobs, err = nil, ErrLost // it was replaced meanwhile, and its jobs are free
	}
	for _, one := range answer.Jobs {
		job := &Job{Facts: one.Facts, token: one.Token, saved: one.Checkpoint, worker: w}
		var alive context.Context
		alive, job.cancel = context.WithCancel(context.Background())
		w.running[job.ref()] = job
		w.busy++
		go w.run(alive, job)
	}
	w.mutex.Unlock()
	return len(answer.Jobs), err
}

// -- jobs -------------------------------------------------------------------------------------------

func (w *Worker) run(ctx context.Context, job *Job) {
	var once sync.Once
	over := func(ended end) { once.Do(func() { w.ends.add(ended) }) }
	clock, stop := context.WithCancel(w.life)
	if job.TimeoutSeconds > 0 {
		go w.limit(clock, job, over)
	}
	ended := w.outcome(WithTrace(ctx, traceOf(job.Headers)), job)
	stop()
	job.cancel()
	w.mutex.Lock()
	w.busy--
	w.tell()
	w.mutex.Unlock()
	over(ended)
}

// limit stops a handler whose time is over. One that goes on keeps its slot, and what it returns is
// dropped.
func (w *Worker) limit(ctx context.Context, job *Job, over func(end)) {
	if !sleep(ctx, time.Duration(math.Min(job.TimeoutSeconds*1e9, math.MaxInt64/2))) {
		return
	}
	job.stop(TimedOut)
	if !sleep(ctx, lastMoment) {
		return
	}
	w.client.logf("winch: %s: its handler goes on past its timeout", job)
	late := end{job: job}
	late.timedOut()
	over(late)
}

// outcome runs the handler, and is how its job ends.
func (w *Worker) outcome(ctx context.Context, job *Job) (ended end) {
	ended = end{job: job, fields: map[string]any{"id": job.ID, "token": job.token}}
	defer func() {
		if cause := recover(); cause != nil {
			ended.fails("panic", fmt.Sprint(cause), string(debug.Stack()))
		}
	}()
	handler, known := w.handlers[job.Task]
	if !known { // the session names its tasks, so this cannot be
		ended.fields["outcome"] = "release"
		return ended
	}
	var value any
	next := func(ctx context.Context) (err error) {
		value, err = handler(ctx, job)
		return err
	}
	var err error
	if w.options.Around == nil {
		err = next(ctx)
	} else {
		err = w.options.Around(ctx, job, next)
	}
	var chosen *outcome
	switch {
	case errors.As(err, &chosen):
		ended.fields["outcome"] = chosen.kind
		if chosen.reason != "" {
			ended.fields["reason"] = chosen.reason
		}
		if chosen.kind == "retry" || chosen.kind == "snooze" {
			ended.fields["delay"] = or1(duration(chosen.delay), "0ms")
		}
	case err != nil && errors.Is(err, context.Canceled) && job.Stopped() == Cancelled:
		ended.fields["outcome"], ended.fields["reason"] = "cancel", "cancelled while it ran"
	case err != nil && errors.Is(err, context.Canceled) && job.Stopped() == TimedOut:
		ended.timedOut()
	case err != nil && errors.Is(err, context.Canceled) && job.Stopped() != "":
		ended.fields["outcome"], ended.fields["has_started"] = "release", true
	case err != nil:
		ended.fails(nameOf(err), err.Error(), chainOf(err))
	default:
		text, err := json.Marshal(value)
		if err != nil {
			ended.fails("JSONError", "the result is no JSON: "+err.Error(), "")
			return ended
		}
		ended.fields["outcome"], ended.fields["result"] = "complete", json.RawMessage(text)
		ended.size = len(text)
	}
	return ended
}

func or1(text, otherwise string) string {
	if text == "" {
		return otherwise
	}
	return text
}
