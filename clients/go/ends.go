package winch

import (
	"context"
	"errors"
	"fmt"
	"time"
)

const (
	mostBytes = 1 << 20
	// For how long the end of a job is worth sending: its lease is long over then.
	endPatience = time.Hour
)

// end is how a job ends.
type end struct {
	job    *Job
	fields map[string]any
	size   int
}

func (e *end) fails(name, message, trace string) {
	problem := map[string]any{"type": name, "message": message}
	if trace != "" {
		problem["traceback"] = trace
	}
	e.fields = map[string]any{
		"id": e.job.ID, "token": e.job.token, "outcome": "fail", "error": problem,
	}
	e.size = len(message) + len(trace)
}

func (e *end) timedOut() {
	e.fails("winch.JobTimeout", fmt.Sprintf("took longer than its timeout of %g s", e.job.TimeoutSeconds), "")
}

// ends sends how jobs end: while one request is under way the next ones gather, and go together. A repeat
// changes nothing, so a request is sent until it is answered.
type ends struct {
	worker  *Worker
	waiting chan end
}

func newEnds(worker *Worker) *ends {
	return &ends{worker, make(chan end, worker.options.Slots)}
}

func (e *ends) add(one end) {
	select {
	case e.waiting <- one:
	case <-e.worker.life.Done():
	}
}

func (e *ends) run(ctx context.Context) {
	for {
		select {
		case first := <-e.waiting:
			batch, size := []end{first}, first.size
		gather:
			for len(batch) < mostInBatch && size < mostBytes {
				select {
				case one := <-e.waiting:
					batch, size = append(batch, one), size+one.size
				default:
					break gather
				}
			}
			e.send(ctx, batch)
		case <-ctx.Done():
			return
		}
	}
}

// send sends a batch; each job of it has ended here when it returns.
func (e *ends) send(ctx context.Context, batch []end) {
	err := e.post(ctx, batch)
	if err != nil && len(batch) > 1 && isRefusal(err) {
		for _, one := range batch { // one that the server refuses must not keep the others
			e.send(ctx, []end{one})
		}
		return
	}
	if err != nil && ctx.Err() == nil {
		e.worker.client.logf("winch: %s: its end was refused: %v", batch[0].job, err)
		if batch[0].fields["outcome"] == "complete" && isRefusal(err) {
			var problem *Error
			errors.As(err, &problem)
			batch[0].fails("Refused", problem.Detail, "")
			if err = e.post(ctx, batch); err != nil {
				e.worker.client.logf("winch: %s: its failure was refused: %v", batch[0].job, err)
			}
		}
	}
	e.worker.mutex.Lock()
	for _, one := range batch {
		delete(e.worker.running, one.job.ref())
	}
	e.worker.tell()
	e.worker.mutex.Unlock()
}

// isRefusal tells whether the server has refused what was in a request, and would again.
func isRefusal(err error) bool {
	var problem *Error
	return errors.As(err, &problem) && (problem.Status == 413 || problem.Status == 422 || problem.Status == 400)
}

func (e *ends) post(ctx context.Context, batch []end) error {
	outcomes := make([]map[string]any, len(batch))
	for n, one := range batch {
		outcomes[n] = one.fields
	}
	var answer struct {
		Answers []struct{ ID, Answer string }
	}
	body := map[string]any{"outcomes": outcomes}
	if err := e.worker.ask(ctx, "/finish", body, &answer, call{patience: endPatience}); err != nil {
		return err
	}
	for _, one := range answer.Answers {
		if one.Answer == "lost" {
			e.worker.client.logf("winch: job %s: its claim had ended; the result is dropped", one.ID)
		}
	}
	return nil
}
