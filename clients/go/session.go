package winch

import (
	"context"
	"errors"
	"sync"
	"time"
)

// session is the worker as the server knows it. Its key is a secret: it is in the path of each request, so
// errors have no URL (see cleaned).
type session struct {
	worker *Worker
	mutex  sync.Mutex
	key    func() string // a closure: no way of printing a worker shows it
	every  time.Duration
	beats  sync.Mutex // one heartbeat at a time: each takes what waits for it
}

func (s *session) current() string {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if s.key == nil {
		return ""
	}
	return s.key()
}

func (s *session) begin(ctx context.Context) error {
	return s.register(ctx, s.worker.client.patience)
}

func (s *session) register(ctx context.Context, patience time.Duration) error {
	w := s.worker
	tasks := make([]string, 0, len(w.handlers))
	for name := range w.handlers {
		tasks = append(tasks, name)
	}
	key := newID()
	body := map[string]any{
		"worker": w.options.Name, "queues": w.options.Queues, "slots": w.options.Slots, "key": key,
		"tasks": tasks, "lease": duration(w.options.Lease), "release": w.options.Release,
	}
	if len(w.contracts) > 0 {
		body["contracts"] = w.contracts
	}
	var answer struct {
		BeatSeconds float64 `json:"beat_seconds"`
	}
	if err := w.client.ask(ctx, "POST", "/sessions", body, &answer, call{patience: patience}); err != nil {
		return err
	}
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.key = func() string { return key }
	s.every = time.Duration(answer.BeatSeconds * float64(time.Second))
	return nil
}

// ask sends a request about this session. When it has ended, it is replaced, and the request fails: its
// jobs are lost.
func (s *session) ask(ctx context.Context, key, path string, body, answer any, how call) error {
	if key == "" {
		return &Error{Code: "session-ended", Detail: "the worker has no session now"}
	}
	err := s.worker.client.ask(ctx, "POST", "/sessions/"+key+path, body, answer, how)
	if IsCode(err, "session-ended") {
		s.replace(key)
	}
	return err
}

func (w *Worker) ask(ctx context.Context, path string, body, answer any, how call) error {
	return w.session.ask(ctx, w.session.current(), path, body, answer, how)
}

// replace registers anew. The jobs of the session that has ended are other workers'.
func (s *session) replace(ended string) {
	w := s.worker
	s.mutex.Lock()
	isCurrent := s.key != nil && s.key() == ended
	if isCurrent {
		s.key = nil
	}
	s.mutex.Unlock()
	if !isCurrent || w.life.Err() != nil {
		return // another goroutine does it
	}
	w.client.logf("winch: the session of %s has ended; its jobs are other workers'", w.options.Name)
	w.mutex.Lock()
	lost := w.running
	w.running = map[ref]*Job{}
	w.tell()
	w.mutex.Unlock()
	for _, job := range lost {
		job.stop(Lost)
	}
	var pauses backoff
	for w.life.Err() == nil {
		err := s.register(w.life, 0)
		if err == nil {
			return
		}
		w.client.logf("winch: register: %v", err)
		if !sleep(w.life, pauses.next()+firstPause) {
			return
		}
	}
}

// end ends the session: what it still holds is ready at once.
func (s *session) end() {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	key := s.current()
	if key == "" {
		return
	}
	how := call{patience: 2 * time.Second}
	err := s.worker.client.ask(ctx, "DELETE", "/sessions/"+key, nil, nil, how)
	if err != nil && !IsCode(err, "session-ended") {
		s.worker.client.logf("winch: the session ends with its lease: %v", err)
	}
}

// -- heartbeats -------------------------------------------------------------------------------------

func (s *session) beat(ctx context.Context) {
	began := time.Now()
	for {
		s.mutex.Lock()
		every := s.every
		s.mutex.Unlock()
		// From the beginning of the last one: with a slow server a lease has as many heartbeats.
		if !sleep(ctx, every-time.Since(began)) {
			return
		}
		began = time.Now()
		if key := s.current(); key != "" {
			if err := s.beatOnce(ctx, key, every); err != nil && ctx.Err() == nil {
				s.worker.client.logf("winch: heartbeat: %v", err)
			}
		}
	}
}

// lastBeat brings the server the answers to orders, if any wait.
func (s *session) lastBeat() {
	s.beats.Lock() // one that is under way may take them
	s.worker.mutex.Lock()
	waits := len(s.worker.answers) > 0
	s.worker.mutex.Unlock()
	s.beats.Unlock()
	if key := s.current(); waits && key != "" {
		if err := s.beatOnce(s.worker.life, key, time.Second); err != nil {
			s.worker.client.logf("winch: heartbeat: %v", err)
		}
	}
}

type orderAnswer struct {
	ID    string `json:"id"`
	State string `json:"state"`
	Text  string `json:"text"`
}

type order struct {
	ID    string
	Do    string
	Grace *float64
}

func (s *session) beatOnce(ctx context.Context, key string, every time.Duration) error {
	s.beats.Lock()
	defer s.beats.Unlock()
	w := s.worker
	w.mutex.Lock()
	running, onTheWay := make([]ref, 0, len(w.running)), map[string]bool{}
	for one := range w.running {
		running = append(running, one)
	}
	for token := range w.claiming {
		onTheWay[token] = true
	}
	sent := len(w.answers)
	if sent > 100 {
		sent = 100
	}
	answers := append([]orderAnswer{}, w.answers[:sent]...)
	w.mutex.Unlock()
	var found struct {
		Cancelled, Lost, Unlisted []ref
		Orders                    []order
	}
	body := map[string]any{"running": running, "answers": answers}
	// A heartbeat that hangs is given up after half of the lease, so that the next one keeps the jobs.
	how := call{patience: every / 2, limit: 2 * every}
	if err := s.ask(ctx, key, "/heartbeat", body, &found, how); err != nil {
		return err
	}
	w.mutex.Lock()
	w.answers = w.answers[sent:]
	var cancelled, lost []*Job
	for _, one := range found.Cancelled {
		if job := w.running[one]; job != nil {
			cancelled = append(cancelled, job)
		}
	}
	for _, one := range found.Lost {
		if job := w.running[one]; job != nil {
			lost = append(lost, job)
		}
	}
	// Claims that the worker does not know: the reply was lost. One whose claim is on its way comes later.
	strays := []map[string]any{}
	for _, one := range found.Unlisted {
		if !onTheWay[one.Token] && !w.claiming[one.Token] && w.running[one] == nil {
			strays = append(strays, map[string]any{"id": one.ID, "token": one.Token, "outcome": "release"})
		}
	}
	w.mutex.Unlock()
	for _, job := range cancelled {
		job.stop(Cancelled)
	}
	for _, job := range lost {
		job.stop(Lost)
	}
	if len(strays) > 0 {
		if err := s.ask(ctx, key, "/finish", map[string]any{"outcomes": strays}, nil, call{}); err != nil {
			w.client.logf("winch: jobs of a lost claim go back with the next heartbeat: %v", err)
		}
	}
	for _, one := range found.Orders {
		w.obey(one)
	}
	return nil
}

var errUnknownOrder = errors.New("a worker of the Go SDK does not know this order")

// obey carries out an operator's order, once.
func (w *Worker) obey(one order) {
	w.mutex.Lock()
	if w.met[one.ID] {
		w.mutex.Unlock()
		return
	}
	w.met[one.ID] = true
	answer := orderAnswer{ID: one.ID, State: "done"}
	isStop := false
	switch one.Do {
	case "quiet", "resume":
		w.isQuiet = one.Do == "quiet"
		if w.isQuiet && w.cut != nil {
			w.cut()
		}
		w.tell()
	case "stop", "drain":
		isStop = true
		if one.Grace != nil {
			w.grace = time.Duration(*one.Grace * float64(time.Second))
			close(w.isSooner)
			w.isSooner = make(chan struct{})
		}
	default:
		answer.State, answer.Text = "failed", errUnknownOrder.Error()
	}
	w.answers = append(w.answers, answer)
	w.mutex.Unlock()
	if isStop {
		w.Stop()
	}
}
