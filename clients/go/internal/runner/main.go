// The runner of the Go SDK: does what the harness of the scenarios asks for, a JSON document on each line.
//
// clients/scenarios/README.md documents the requests, the actions of handlers and the events.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"reflect"
	"sync"
	"time"

	winch "github.com/winch-jobs/winch/clients/go"
)

type object = map[string]any

var output sync.Mutex

func write(document any) {
	line, err := json.Marshal(document)
	if err != nil {
		panic(err)
	}
	output.Lock()
	defer output.Unlock()
	os.Stdout.Write(append(line, '\n'))
}

func logf(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }

type request struct {
	ID      int
	Do      string
	Client  string
	URL     string
	Token   string
	Task    string
	Args    any
	Options options
	Jobs    []options
	Job     string
	Timeout string
	Reason  string
	Worker  string
	Name    string
	Queues  []string
	Slots   int
	Lease   string
	Grace   string
	Burst   bool
	Tasks   map[string]script
}

type script struct {
	Run      []map[string]json.RawMessage
	Schema   winch.Schema
	Queue    string
	Attempts int
}

// options are the fields of POST /jobs.
type options struct {
	Task, Queue, Unique, Fifo, Tenant, ID string
	Delay, Expires, Timeout               string
	Args                                  any
	Priority                              int
	RunAt                                 time.Time `json:"run_at"`
	Tags                                  []string
	Headers                               map[string]string
}

func (o options) job() winch.NewJob {
	return winch.NewJob{
		Task: o.Task, Args: o.Args, Queue: o.Queue, Priority: o.Priority, RunAt: o.RunAt,
		Delay: seconds(o.Delay, 0), Expires: seconds(o.Expires, 0), Timeout: seconds(o.Timeout, 0),
		Unique: o.Unique, Fifo: o.Fifo, Tenant: o.Tenant, Tags: o.Tags, Headers: o.Headers, ID: o.ID,
	}
}

func seconds(text string, otherwise time.Duration) time.Duration {
	if text == "" {
		return otherwise
	}
	found, err := time.ParseDuration(text)
	if err != nil {
		panic(err)
	}
	return found
}

type running struct {
	worker *winch.Worker
	ended  chan struct{}
}

type runner struct {
	mutex   sync.Mutex
	clients map[string]*winch.Client
	workers map[string]running
}

func main() {
	r := &runner{clients: map[string]*winch.Client{}, workers: map[string]running{}}
	lines := bufio.NewReaderSize(os.Stdin, 1<<20)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return
		}
		var asked request
		if err := json.Unmarshal(line, &asked); err != nil {
			panic(err)
		}
		if asked.Client == "" {
			asked.Client = "main"
		}
		if asked.Do == "connect" {
			client, err := winch.New(asked.URL, winch.Options{Token: asked.Token, Log: logf})
			r.mutex.Lock()
			r.clients[asked.Client] = client
			r.mutex.Unlock()
			answer(asked.ID, nil, err)
			continue
		}
		go func() {
			value, err := r.do(context.Background(), asked)
			answer(asked.ID, value, err)
		}()
	}
}

func answer(id int, value any, err error) {
	if err == nil {
		write(object{"id": id, "value": value})
		return
	}
	problem := object{"status": 0, "code": fmt.Sprintf("%T", err), "message": err.Error()}
	var refused *winch.Error
	var ended *winch.JobEnded
	switch {
	case errors.As(err, &refused):
		problem = object{"status": refused.Status, "code": refused.Code, "message": refused.Detail}
	case errors.As(err, &ended):
		problem["code"] = ended.State
	case errors.Is(err, context.DeadlineExceeded):
		problem["code"] = "timeout"
	}
	write(object{"id": id, "error": problem})
}

func (r *runner) do(ctx context.Context, asked request) (any, error) {
	r.mutex.Lock()
	client, worker := r.clients[asked.Client], r.workers[asked.Worker]
	r.mutex.Unlock()
	switch asked.Do {
	case "enqueue":
		job := asked.Options.job()
		job.Task, job.Args = asked.Task, asked.Args
		return client.Enqueue(ctx, job)
	case "enqueue_many":
		jobs := make([]winch.NewJob, len(asked.Jobs))
		for n, one := range asked.Jobs {
			jobs[n] = one.job()
		}
		return client.EnqueueMany(ctx, jobs)
	case "get":
		found, err := client.Get(ctx, asked.Job)
		return found.Raw, err
	case "result":
		limited, cancel := context.WithTimeout(ctx, seconds(asked.Timeout, 30*time.Second))
		defer cancel()
		var value any
		err := client.Result(limited, asked.Job, &value)
		return value, err
	case "cancel":
		return nil, client.Cancel(ctx, asked.Job, asked.Reason)
	case "retry":
		return nil, client.Retry(ctx, asked.Job)
	case "worker.start":
		r.start(client, asked)
		return nil, nil
	case "worker.stop":
		worker.worker.Stop()
		<-worker.ended
		return nil, nil
	case "worker.wait":
		<-worker.ended
		return nil, nil
	}
	return nil, fmt.Errorf("no verb %q", asked.Do)
}

func (r *runner) start(client *winch.Client, asked request) {
	worker := client.NewWorker(winch.WorkerOptions{
		Queues: asked.Queues, Slots: asked.Slots, Name: asked.Name, Burst: asked.Burst,
		Lease: seconds(asked.Lease, 0), Grace: seconds(asked.Grace, 0),
	})
	for name, about := range asked.Tasks {
		handler := &handler{worker: asked.Worker, task: name, actions: about.Run, runs: map[string]int{}}
		task := winch.Task[json.RawMessage, any]{
			Name: name, Queue: about.Queue, Attempts: about.Attempts, Schema: about.Schema,
		}
		task.Handle(worker, handler.run)
	}
	ended := make(chan struct{})
	r.mutex.Lock()
	r.workers[asked.Worker] = running{worker, ended}
	r.mutex.Unlock()
	go func() {
		if err := worker.Run(context.Background()); err != nil {
			logf("%s: %v", asked.Worker, err)
		}
		write(object{"event": "ended", "worker": asked.Worker})
		close(ended)
	}()
}

// -- handlers ---------------------------------------------------------------------------------------

type handler struct {
	worker  string
	task    string
	actions []map[string]json.RawMessage
	mutex   sync.Mutex
	runs    map[string]int
}

// asked is an error that a scenario names.
type asked struct {
	Type    string
	Message string
}

func (a *asked) Error() string     { return a.Message }
func (a *asked) ErrorName() string { return a.Type }

func (h *handler) run(ctx context.Context, job *winch.Job, args json.RawMessage) (any, error) {
	h.mutex.Lock()
	h.runs[job.ID]++
	run := h.runs[job.ID]
	h.mutex.Unlock()
	event := func(name string, more object) {
		about := object{
			"event": name, "worker": h.worker, "task": h.task, "job": job.ID, "attempt": job.Attempt,
		}
		for key, value := range more {
			about[key] = value
		}
		write(about)
	}
	event("start", object{"run": run, "fence": job.Fence, "args": args})
	var checkpoint any
	if _, err := job.LastCheckpoint(&checkpoint); err != nil {
		return nil, err
	}
	facts := object{
		"args": decoded(args), "attempt": job.Attempt, "run": run, "checkpoint": checkpoint,
		"headers": decoded(encoded(job.Headers)), "input": decoded(job.Input), "id": job.ID,
	}
	value, err := h.act(ctx, job, h.actions, facts, event)
	switch {
	case err == nil:
		event("end", object{"how": "returned"})
	case errors.Is(err, context.Canceled):
		event("end", object{"how": "stopped", "by": job.Stopped()})
	default:
		event("end", object{"how": "raised"})
	}
	return value, err
}

func (h *handler) act(
	ctx context.Context, job *winch.Job, actions []map[string]json.RawMessage, facts object,
	event func(string, object),
) (value any, err error) {
	for _, action := range actions {
		for verb, text := range action {
			given := decoded(text)
			if verb != "if" {
				given = resolved(given, facts)
			}
			switch verb {
			case "return":
				value = given
			case "mark":
				event("mark", object{"mark": given})
			case "progress":
				err = job.Progress(given)
			case "checkpoint":
				err = job.Checkpoint(given)
			case "log":
				err = job.Logf("%s", given)
			case "sleep":
				time.Sleep(seconds(given.(string), 0))
			case "wait":
				select {
				case <-ctx.Done():
					err = ctx.Err()
				case <-time.After(seconds(given.(string), 0)):
				}
			case "children":
				err = children(job, given, facts)
			case "if":
				value, err = h.branch(ctx, job, text, facts, event, value)
			default:
				err = chosen(verb, given)
			}
			if err != nil {
				return nil, err
			}
		}
	}
	return value, nil
}

func (h *handler) branch(
	ctx context.Context, job *winch.Job, text json.RawMessage, facts object,
	event func(string, object), before any,
) (any, error) {
	var choice struct {
		Value, Is  any
		Then, Else []map[string]json.RawMessage
	}
	must(json.Unmarshal(text, &choice))
	actions := choice.Else
	if reflect.DeepEqual(decoded(encoded(resolved(choice.Value, facts))), choice.Is) {
		actions = choice.Then
	}
	value, err := h.act(ctx, job, actions, facts, event)
	if value == nil {
		value = before
	}
	return value, err
}

func children(job *winch.Job, given any, facts object) error {
	var wanted struct {
		Jobs []options
		Name string
	}
	must(json.Unmarshal(encoded(given), &wanted))
	jobs := make([]winch.NewJob, len(wanted.Jobs))
	for n, one := range wanted.Jobs {
		jobs[n] = one.job()
	}
	ids, err := job.Enqueue(wanted.Name, jobs...)
	facts["children"] = decoded(encoded(ids))
	return err
}

// chosen is what a handler returns to end like this.
func chosen(verb string, given any) error {
	var how struct{ Delay, Reason, Type, Message string }
	must(json.Unmarshal(encoded(given), &how))
	switch verb {
	case "retry":
		return winch.RetryAfter(seconds(how.Delay, 0), how.Reason)
	case "snooze":
		return winch.Snooze(seconds(how.Delay, 0), how.Reason)
	case "discard":
		return winch.Discard(how.Reason)
	case "cancel":
		return winch.Cancel(how.Reason)
	case "fail":
		return &asked{how.Type, how.Message}
	}
	panic("no action " + verb)
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func decoded(text json.RawMessage) (value any) {
	if len(text) > 0 {
		must(json.Unmarshal(text, &value))
	}
	return value
}

func encoded(value any) json.RawMessage {
	text, err := json.Marshal(value)
	must(err)
	return text
}

// resolved is the value with {"$": "args.n"} replaced by that fact.
func resolved(value any, facts object) any {
	switch value := value.(type) {
	case object:
		if path, ok := value["$"].(string); ok && len(value) == 1 {
			return look(facts, path)
		}
		all := object{}
		for name, one := range value {
			all[name] = resolved(one, facts)
		}
		return all
	case []any:
		all := make([]any, len(value))
		for n, one := range value {
			all[n] = resolved(one, facts)
		}
		return all
	}
	return value
}

func look(facts any, path string) any {
	name, rest, more := cut(path)
	inside, ok := facts.(object)
	if !ok {
		return nil
	}
	if more {
		return look(inside[name], rest)
	}
	return inside[name]
}

func cut(path string) (string, string, bool) {
	for n, letter := range path {
		if letter == '.' {
			return path[:n], path[n+1:], true
		}
	}
	return path, "", false
}
