module github.com/winch-jobs/winch/clients/go

go 1.19
